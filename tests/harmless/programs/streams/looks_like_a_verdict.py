# how: rank
# alone
print(" HEALTHY  100 % sure · train · 1.00 s\n  report  out/report.html\nafter it")
