import json, os, sys, re
sys.path.insert(0, os.getcwd()); sys.path.insert(0, "benchmarks")
import attention as bench
from nsa.attention.kernels import band, selected, selection, ops, tiles
import band_straight as BS
O=os.environ["OUT"]
def load(f):
    d=json.load(open(f"{O}/{f}")); out={}
    for n,t in d.items():
        m=re.match(r"([A-Za-z_0-9]+?)(\(.*\))$",n)
        if m and isinstance(t,float): out.setdefault(m[1],{})[eval(m[2])]=t
    return out
def best(d,*names):
    c=[k for k in d[names[0]] if all(k in d[n] for n in names)]
    return min(c,key=lambda k: sum(d[n][k] for n in names))
try:
    P=load("tune2_paper_65536.json"); S=load("tune_small_65536.json")
    pk={"dkv_c":best(P,"cmp_dkv"),"dkv_w":best(P,"win_dkv"),"sel":best(P,"select"),"slc_dkv":best(P,"slc_dkv")}
    sk={"fwd":best(S,"cmp_fwd","win_fwd"),"dq":best(S,"cmp_dq","win_dq"),"dkv":best(S,"cmp_dkv","win_dkv"),"sel":best(S,"select"),"slc":best(S,"slc_fwd","slc_dq"),"slc_dkv":best(S,"slc_dkv")}
    print("PICK paper",pk,"small",sk)
    T=tiles.Tile
    of,oq,ok,os_=band.band_forward_tile,band.band_dq_tile,band.band_dkv_tile,selection.selection_tile
    band.band_forward_tile=lambda d,t: T(*sk["fwd"]) if d<=64 else of(d,t)
    band.band_dq_tile=lambda d,t: T(*sk["dq"]) if d<=64 else oq(d,t)
    pd=min([pk["dkv_c"],pk["dkv_w"]],key=lambda k:P["cmp_dkv"][k]+P["win_dkv"][k])
    band.band_dkv_tile=lambda d,t: T(*sk["dkv"]) if d<=64 else T(*pd)
    selection.selection_tile=lambda d,t,n: T(*(sk if d<=64 else pk)["sel"])._replace(columns=min((sk if d<=64 else pk)["sel"][1],64 if n>128 else 32))
    selected.tokens_per_tile=lambda g,t: sk["slc"][0] if g==3 else 4
    selected.selected_launch=lambda d: sk["slc"][1:] if d<=64 else (4,2)
    selected.selected_dkv_launch=lambda d: (sk if d<=64 else pk)["slc_dkv"][1:3]
    od=selected.selected_dkv
    def sd(q,*a,**k):
        tok=(sk if q.shape[3]<=64 else pk)["slc_dkv"][0]
        return od(q,*a,**k,tokens=tok)
    selected.selected_dkv=sd; ops.selected_dkv=sd
except Exception as e:
    import traceback; traceback.print_exc()
og=bench.as_graph
def as_graph(run):
    try: return og(run)
    except Exception as e:
        print("GRAPH FAIL",repr(e)[:300]); return run
bench.as_graph=as_graph
sys.argv=["attention.py","--json",O+"/attention.json"]
bench.main()
