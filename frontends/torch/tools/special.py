"""Prints `tests/suite/special.txt`: ops at special values with the results that PyTorch gives.

    python3 special.py > ../tests/suite/special.txt
"""

import itertools
import math

import torch

print("""# Values at the edges, and integers: what PyTorch gives for NaN, infinities and zeros, in the form of `ops.txt`. Made by
# tools/special.py. Left out is gelu of infinity, NaN in PyTorch's vector code and infinity in its scalar code.
""", end="")
nan,inf=math.nan,math.inf
V=[nan,inf,-inf,0.0,-0.0,1.0,-1.0,2.5,-2.5,0.5,88.0,-104.0]
def fmt(t):
    def n(v):
        if isinstance(v,bool): return '1' if v else '0'
        if isinstance(v,float):
            if math.isnan(v): return 'NaN'
            return repr(v)
        return str(v)
    return ' '.join(n(v) for v in t.flatten().tolist())
D={torch.float32:'f32',torch.int64:'i64',torch.bool:'bool',torch.float64:'f64',torch.uint8:'u8',torch.bfloat16:'bf16',torch.int32:'i32'}
def ty(t): return f"{D[t.dtype]}[{','.join(map(str,t.shape))}]"
def line(call, args, kw, res, ts):
    ops='; '.join(f"{n}={ty(t)}: {fmt(t)}" for n,t in ts)
    res=res if isinstance(res,(tuple,list)) else [res]
    print(f"{ops} | {call} {' '.join(a for a in args)} | "+'; '.join(f"{ty(r)}: {fmt(r)}" for r in res))
x=torch.tensor(V)
pairs=list(itertools.product(V,V)); a=torch.tensor([p[0] for p in pairs]); b=torch.tensor([p[1] for p in pairs])
A=torch.ops.aten
for op in "relu tanh sigmoid silu relu6 hardtanh hardsigmoid hardswish leaky_relu elu softplus mish log_sigmoid neg abs sign sgn floor ceil round trunc exp log sqrt rsqrt reciprocal sin cos erf exp2 log2 log10 log1p expm1 erfc sinh cosh square tan atan asin acos isnan isfinite isinf nan_to_num logical_not".split():
    f=getattr(A,op)
    try: line(f"aten.{op}.default",["self=%x"],{},f(x),[('x',x)])
    except Exception as e: raise SystemExit(f'{op}: {e}')
for op in "add sub mul div floor_divide remainder fmod pow atan2 eq ne lt le gt ge logical_and logical_or logical_xor maximum minimum".split():
    f=getattr(A,op); ov={'maximum':'default','minimum':'default','floor_divide':'default','logical_and':'default','logical_or':'default','logical_xor':'default','atan2':'default','pow':'Tensor_Tensor'}.get(op,'Tensor')
    second='exponent' if op=='pow' else 'other'
    line(f"aten.{op}.{ov}",["self=%x",f"{second}=%y"],{},f(a,b),[('x',a),('y',b)])
for rm in ('floor','trunc'):
    line("aten.div.Tensor_mode",["self=%x","other=%y",f"rounding_mode='{rm}'"],{},A.div(a,b,rounding_mode=rm),[('x',a),('y',b)])
line("aten.clamp.default",["self=%x","min=-1.0","max=1.0"],{},A.clamp(x,-1.0,1.0),[('x',x)])
line("aten.clamp.Tensor",["self=%x","min=%y"],{},A.clamp(a,min=b),[('x',a),('y',b)])
line("aten.clamp.Tensor",["self=%x","max=%y"],{},A.clamp(a,max=b),[('x',a),('y',b)])
line("aten.clamp_min.default",["self=%x","min=0.5"],{},A.clamp_min(x,0.5),[('x',x)])
line("aten.threshold.default",["self=%x","threshold=0.5","value=7.0"],{},A.threshold(x,0.5,7.0),[('x',x)])
line("aten.threshold_backward.default",["grad_output=%g","self=%x","threshold=0"],{},A.threshold_backward(torch.ones_like(x),x,0),[('g',torch.ones_like(x)),('x',x)])
line("aten.where.self",["condition=%c","self=%x","other=%y"],{},A.where(a>b,a,b),[('c',a>b),('x',a),('y',b)])
line("aten.lerp.Scalar",["self=%x","end=%y","weight=0.5"],{},A.lerp(a,b,0.5),[('x',a),('y',b)])
R=[[nan,1.,2.],[3.,nan,2.],[1.,2.,nan],[inf,-inf,1.],[-0.0,0.0,-0.0],[1.,3.,3.],[-inf,-inf,-inf],[nan,nan,1.],[inf,inf,2.]]
r=torch.tensor(R)
for op in "sum prod amax amin max min any all argmax argmin mean logsumexp var std cumsum sort softmax log_softmax _softmax count_nonzero".split():
    f=getattr(A,op)
    try:
        if op in('amax','amin','logsumexp','sum','mean','var','std'):
            ov={'sum':'dim_IntList','mean':'dim','var':'dim','std':'dim'}.get(op,'default')
            line(f"aten.{op}.{ov}",["self=%x","dim=[1]"],{},f(r,[1]),[('x',r)])
        elif op in('max','min'): line(f"aten.{op}.dim",["self=%x","dim=1"],{},f(r,1),[('x',r)]); line(f"aten.{op}.default",["self=%x"],{},f(r),[('x',r)])
        elif op in ('any','all'): line(f"aten.{op}.dim",["self=%x","dim=1"],{},f(r,1),[('x',r)])
        elif op=='prod': line("aten.prod.dim_int",["self=%x","dim=1"],{},f(r,1),[('x',r)])
        elif op=='softmax': line("aten.softmax.int",["self=%x","dim=1"],{},f(r,1),[('x',r)])
        elif op=='log_softmax': line("aten.log_softmax.int",["self=%x","dim=1"],{},f(r,1),[('x',r)])
        elif op=='_softmax': line("aten._softmax.default",["self=%x","dim=1","half_to_float=false"],{},f(r,1,False),[('x',r)])
        elif op=='count_nonzero': line("aten.count_nonzero.dim_IntList",["self=%x","dim=[1]"],{},f(r,[1]),[('x',r)])
        elif op=='sort':
            line("aten.sort.stable",["self=%x","stable=true","dim=1","descending=false"],{},A.sort.stable(r,stable=True,dim=1,descending=False),[('x',r)])
            line("aten.sort.stable",["self=%x","stable=true","dim=1","descending=true"],{},A.sort.stable(r,stable=True,dim=1,descending=True),[('x',r)])
        else: line(f"aten.{op}.default",["self=%x","dim=1"],{},f(r,1),[('x',r)])
    except Exception as e: raise SystemExit(f'{op}: {e}')
line("aten.topk.default",["self=%x","k=2"],{},A.topk(torch.tensor([[nan,1.,2.],[3.,nan,2.]]),2),[('x',torch.tensor([[nan,1.,2.],[3.,nan,2.]]))])
line("aten.topk.default",["self=%x","k=2","largest=false"],{},A.topk(torch.tensor([[nan,1.,2.],[3.,nan,2.]]),2,largest=False),[('x',torch.tensor([[nan,1.,2.],[3.,nan,2.]]))])
f=torch.tensor([nan,inf,-inf,1.5,-1.5,0.0,0.5]);line("aten.to.dtype",["self=%x","dtype=:bool"],{},f.to(torch.bool),[('x',f)])
I=torch.tensor([-7,-3,-1,0,1,3,7,9223372036854775807,-9223372036854775808]); 
i=torch.tensor([5,-5,7,-7,0,9223372036854775807]); k=torch.tensor([3,3,-3,-3,2,2])
for op in "add sub mul remainder fmod floor_divide maximum".split():
    ov={'maximum':'default','floor_divide':'default'}.get(op,'Tensor'); line(f"aten.{op}.{ov}",["self=%x","other=%y"],{},getattr(A,op)(i,k),[('x',i),('y',k)])
line("aten.div.Tensor_mode",["self=%x","other=%y","rounding_mode='trunc'"],{},A.div(i,k,rounding_mode='trunc'),[('x',i),('y',k)])
line("aten.div.Tensor_mode",["self=%x","other=%y","rounding_mode='floor'"],{},A.div(i,k,rounding_mode='floor'),[('x',i),('y',k)])
j=torch.tensor([1,2,-3])
line("aten.mul.Tensor",["self=%x","other=0.5"],{},A.mul(j,0.5),[('x',j)])
line("aten.add.Tensor",["self=%x","other=0.5"],{},A.add(j,0.5),[('x',j)])
line("aten.add.Tensor",["self=%x","other=%x","alpha=3"],{},A.add(j,j,alpha=3),[('x',j)])
line("aten.add.Scalar",["self=%x","other=2.5","alpha=2"],{},A.add(j,2.5,alpha=2),[('x',j)])
line("aten.pow.Tensor_Scalar",["self=%x","exponent=2"],{},A.pow(j,2),[('x',j)])
line("aten.pow.Tensor_Scalar",["self=%x","exponent=0.5"],{},A.pow(torch.tensor([4,9,1]),0.5),[('x',torch.tensor([4,9,1]))])
line("aten.clamp.default",["self=%x","min=-0.5","max=1.5"],{},A.clamp(j,-0.5,1.5),[('x',j)])
line("aten.eq.Scalar",["self=%x","other=1.5"],{},A.eq(j,1.5),[('x',j)])
line("aten.lt.Scalar",["self=%x","other=1.5"],{},A.lt(j,1.5),[('x',j)])
line("aten.remainder.Scalar",["self=%x","other=1.5"],{},A.remainder(j,1.5),[('x',j)])
line("aten.floor_divide.Scalar",["self=%x","other=1.5"],{},A.floor_divide(j,1.5),[('x',j)])
line("aten.lerp.Scalar",["self=%x","end=%x","weight=0.5"],{},A.lerp(j.float(),j.float(),0.5),[('x',j.float())])
line("aten.addcmul.default",["self=%x","tensor1=%x","tensor2=%x","value=3"],{},A.addcmul(j,j,j,value=3),[('x',j)])
line("aten.masked_fill.Scalar",["self=%x","mask=%m","value=2"],{},A.masked_fill(j,j>0,2),[('x',j),('m',j>0)])
line("aten.fill.Scalar",["self=%x","value=2.0"],{},A.fill(j,2.0),[('x',j)])
line("aten.full.default",["size=[2]","fill_value=2.7","dtype=:i64"],{},A.full([2],2.7,dtype=torch.int64),[])
line("aten.hardtanh.default",["self=%x","min_val=-1","max_val=1"],{},A.hardtanh(j,-1,1),[('x',j)])
line("aten.leaky_relu.default",["self=%x"],{},A.leaky_relu(j.float()),[('x',j.float())])
line("aten.threshold.default",["self=%x","threshold=1","value=7"],{},A.threshold(j,1,7),[('x',j)])
line("aten.arange.start_step",["start=0","end=5","step=2"],{},A.arange(0,5,2),[])
line("aten.arange.start_step",["start=0","end=2","step=0.5"],{},A.arange(0,2,0.5),[])
line("aten.linspace.default",["start=0","end=5","steps=3","dtype=:i64"],{},A.linspace(0,5,3,dtype=torch.int64),[])
line("aten.addmm.default",["self=%x","mat1=%y","mat2=%y","beta=0","alpha=1"],{},A.addmm(torch.full((2,2),nan),torch.eye(2),torch.eye(2),beta=0),[('x',torch.full((2,2),nan)),('y',torch.eye(2))])
line("aten.linalg_vector_norm.default",["self=%x","ord=inf","dim=[1]"],{},A.linalg_vector_norm(r,inf,[1]),[('x',r)])
line("aten._safe_softmax.default",["self=%x","dim=1"],{},A._safe_softmax(r,1),[('x',r)])
line("aten.pow.Tensor_Scalar",["self=%x","exponent=0.5"],{},A.pow(x,0.5),[('x',x)])
line("aten.pow.Tensor_Scalar",["self=%x","exponent=-0.5"],{},A.pow(x,-0.5),[('x',x)])
def tried(call, args, f, ts):
    """A line, unless PyTorch rejects the call."""
    try: res = f()
    except (RuntimeError, ZeroDivisionError): return
    line(call, args, {}, res, ts)
# Integers at the ends of their dtype (those of i64 that f64 holds), and numbers that the dtype cannot represent.
for kind in (torch.uint8,torch.int32,torch.int64):
    low,high=torch.iinfo(kind).min,torch.iinfo(kind).max
    ends=[low,low+1,high-1,high] if kind!=torch.int64 else [low,-2**62,2**62]
    some=[v for v in (*ends,0,1,2,3,7,-1,-2,-7) if v>=low]
    both=[(p,q) for p in some for q in some if q!=0 and (p,q)!=(low,-1)]
    p,q=(torch.tensor(list(v),dtype=kind) for v in zip(*both))
    n=torch.tensor(some,dtype=kind)
    xy=[('x',p),('y',q)]
    for op in "add sub mul remainder fmod floor_divide eq lt ge bitwise_and".split():
        ov={'floor_divide':'default'}.get(op,'Tensor'); tried(f"aten.{op}.{ov}",["self=%x","other=%y"],lambda: getattr(A,op)(p,q),xy)
    for rm in ('floor','trunc'): tried("aten.div.Tensor_mode",["self=%x","other=%y",f"rounding_mode='{rm}'"],lambda: A.div(p,q,rounding_mode=rm),xy)
    for s in {torch.uint8:(-1,-3,300),torch.int32:(-3,2**31+7,-2**31-9),torch.int64:(-3,300)}[kind]:
        for op in "add sub mul remainder fmod floor_divide eq ne lt le gt ge bitwise_and bitwise_or bitwise_xor".split():
            ov='default' if op=='floor_divide' else 'Scalar'
            tried(f"aten.{op}.{ov}" if op!='floor_divide' else "aten.floor_divide.Scalar",["self=%x",f"other={s}"],lambda: getattr(A,op)(n,s),[('x',n)])
        for rm in ('floor','trunc'): tried("aten.div.Scalar_mode",["self=%x",f"other={s}",f"rounding_mode='{rm}'"],lambda: A.div(n,s,rounding_mode=rm),[('x',n)])
        tried("aten.clamp.default",["self=%x",f"min={s}"],lambda: A.clamp(n,min=s),[('x',n)])
        tried("aten.clamp.default",["self=%x",f"max={s}"],lambda: A.clamp(n,max=s),[('x',n)])
for start,end,step in ((0.5,4.2,0.7),(4,-3.5,-1.5),(0.2,3,1.9),(-1,2.5,1.2),(3,0,-1)):
    for kind in (torch.int64,torch.int32,torch.float32):
        tried("aten.arange.start_step",[f"start={start}",f"end={end}",f"step={step}",f"dtype=:{D[kind]}"],lambda: A.arange(start,end,step,dtype=kind),[])
for start,end,steps in ((0,1,50),(3,4,50),(4.9,2.1,7),(-2,3,5),(1,-1,2),(3,5,1)):
    for kind in (torch.int64,torch.int32,torch.float32):
        tried("aten.linspace.default",[f"start={start}",f"end={end}",f"steps={steps}",f"dtype=:{D[kind]}"],lambda: A.linspace(start,end,steps,dtype=kind),[])
# Shifts, by counts beyond the width and negative ones.
for kind in (torch.uint8,torch.int32,torch.int64):
    info=torch.iinfo(kind)
    counts=[c for c in (0,1,info.bits-1,info.bits,info.bits+1,info.bits//2,-1,-info.bits,info.min) if c>=info.min]
    some=[v for v in (info.min,-7,-1,0,1,5,info.max if kind!=torch.int64 else 2**62) if v>=info.min]
    p,q=(torch.tensor(list(v),dtype=kind) for v in zip(*itertools.product(some,counts)))
    n=torch.tensor(some,dtype=kind)
    for op in ("__lshift__","__rshift__","bitwise_left_shift","bitwise_right_shift"):
        line(f"aten.{op}.Tensor",["self=%x","other=%y"],{},getattr(A,op)(p,q),[('x',p),('y',q)])
        for c in (3,info.bits-1,info.bits,-1,2**40):
            scalar="Scalar" if op.startswith("_") else "Tensor_Scalar"
            line(f"aten.{op}.{scalar}",["self=%x",f"other={c}"],{},getattr(A,op)(n,c),[('x',n)])
    for op in ("bitwise_left_shift","bitwise_right_shift"):
        k=n.clamp(0,info.bits)
        line(f"aten.{op}.Scalar_Tensor",["self=-5","other=%x"],{},getattr(A,op)(-5,k),[('x',k)])
        for other in (torch.uint8,torch.int32,torch.int64):
            k=torch.tensor([0,3,40],dtype=other); w=torch.tensor([1,-3,100]).to(kind)
            line(f"aten.{op}.Tensor",["self=%x","other=%y"],{},getattr(A,op)(w,k),[('x',w),('y',k)])
# Numbers that the dtype of the result may not hold. The results are those of PyTorch, or `raises` and a type. CPU kernels of f16 and bf16
# check bounds and factors in that dtype, GPU kernels in f32: these are left out.
def outside(call, args, f, ts):
    given=ts[0][1]
    try: res=f()
    except RuntimeError as e:
        if 'ZeroDivision' in str(e): return
        res=None
    if res is not None: return line(call,args,{},res,ts)
    ops='; '.join(f"{n}={ty(t)}: {fmt(t)}" for n,t in ts)
    n=4 if 'pad' in call else 2 if 'linspace' in call or call=='aten.full.default' else given.numel()
    print(f"{ops} | {call} {' '.join(args)} | raises {D[given.dtype]}[{n}]")
OUTSIDE={torch.uint8:(-1,-256,256,2**40,1e5,-0.5,2.5,inf),torch.int32:(-1,2**31,-2**31-1,2**40,1e30,2.5,nan),torch.int64:(-1,-1e30,2.5,inf),
    torch.float16:(1e5,-70000,inf,2),torch.bfloat16:(1e39,inf,-2),torch.float32:(1e39,-1e39,-inf)}
D[torch.float16]='f16'
for kind,numbers in OUTSIDE.items():
    x=torch.tensor([1,2,3]).to(kind); m=torch.tensor([True,False,True]); i=torch.tensor([0,2])
    for s in numbers:
        w=f"{s}" if s==s else "NaN"
        narrow=kind in (torch.float16,torch.bfloat16)
        t=D[kind]
        outside("aten.full_like.default",["self=%x",f"fill_value={w}"],lambda: A.full_like(x,s),[('x',x)])
        outside("aten.full.default",["size=[2]",f"fill_value={w}",f"dtype=:{t}"],lambda: A.full([2],s,dtype=kind),[('x',x)])
        outside("aten.fill.Scalar",["self=%x",f"value={w}"],lambda: A.fill(x,s),[('x',x)])
        outside("aten.masked_fill.Scalar",["self=%x","mask=%m",f"value={w}"],lambda: A.masked_fill(x,m,s),[('x',x),('m',m)])
        outside("aten.constant_pad_nd.default",["self=%x","pad=[1,0]",f"value={w}"],lambda: A.constant_pad_nd(x,[1,0],s),[('x',x)])
        outside("aten.index_fill.int_Scalar",["self=%x","dim=0","index=%i",f"value={w}"],lambda: A.index_fill(x,0,i,s),[('x',x),('i',i)])
        outside("aten.scatter.value",["self=%x","dim=0","index=%i",f"value={w}"],lambda: A.scatter(x,0,i,s),[('x',x),('i',i)])
        outside("aten.linspace.default",[f"start={w}","end=1","steps=2",f"dtype=:{t}"],lambda: A.linspace(s,1,2,dtype=kind),[('x',x)])
        outside("aten.threshold.default",["self=%x","threshold=2",f"value={w}"],lambda: A.threshold(x,2,s),[('x',x)])
        outside("aten.pow.Tensor_Scalar",["self=%x",f"exponent={w}"],lambda: A.pow(x,s),[('x',x)])
        for op in ("add","mul","eq","lt","remainder"):
            if not (narrow and op=="add"): outside(f"aten.{op}.Scalar",["self=%x",f"other={w}"],lambda: getattr(A,op).Scalar(x,s),[('x',x)])
        if narrow: continue
        for op in ("add","sub"): outside(f"aten.{op}.Tensor",["self=%x","other=%x",f"alpha={w}"],lambda: getattr(A,op).Tensor(x,x,alpha=s),[('x',x)])
        outside("aten.addcmul.default",["self=%x","tensor1=%x","tensor2=%x",f"value={w}"],lambda: A.addcmul(x,x,x,value=s),[('x',x)])
        outside("aten.clamp.default",["self=%x",f"min={w}"],lambda: A.clamp(x,min=s),[('x',x)])
        outside("aten.clamp.default",["self=%x",f"max={w}"],lambda: A.clamp(x,max=s),[('x',x)])
        outside("aten.clamp_min.default",["self=%x",f"min={w}"],lambda: A.clamp_min(x,s),[('x',x)])
        outside("aten.where.ScalarOther",["condition=%m","self=%x",f"other={w}"],lambda: A.where.ScalarOther(m,x,s),[('x',x),('m',m)])
