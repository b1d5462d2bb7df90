export PYTHONPATH=/tmp/site:$PWD/artifacts/k:$PWD
for i in 0 1 2 3 4 5 6 7 8 9 10 11 12 13; do (timeout 140 python3 artifacts/k/tune2.py compile paper 0 $i > $OUT/c$i.txt 2>&1; timeout 100 python3 artifacts/k/tune.py compile small 0 $i >> $OUT/c$i.txt 2>&1)  & P="$P $!"; done
(timeout 150 python3 -m pytest -m gpu -q -n 4 -p no:cacheprovider tests/nsa/test_kernels_gpu.py > $OUT/pytest.txt 2>&1) & P="$P $!"
wait $P; date
timeout 60 python3 artifacts/k/tune2.py time paper 65536 2>$OUT/regs2.txt; date
timeout 40 python3 artifacts/k/tune.py time small 65536 2>$OUT/regs3.txt; date
cat $OUT/c?.txt $OUT/c1?.txt > $OUT/compile.txt; rm $OUT/c?.txt $OUT/c1?.txt
tail -25 $OUT/pytest.txt
timeout 110 python3 artifacts/k/bench_tuned.py 2>&1 | grep -v Warn | tee $OUT/bench.txt; date
timeout 30 python3 artifacts/k/prof.py > $OUT/prof.txt 2>&1
