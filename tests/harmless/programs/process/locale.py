# how: rank
import locale

print(locale.getlocale(), locale.getpreferredencoding(), locale.setlocale(locale.LC_ALL))
