all elements
R1 a 0 1k
r2 a b r={2*rs} m=2
R0 b c 0
C1 a 0 1n
L1 c d 1u
V1 a 0 DC 5 AC 1
v2 e 0 pulse(1 2 0 1n)
I1 a b pwl(0 3m 1 4m) dc 1m
E1 f 0 (a,b) 2
G1 f 0 a b 1m
V3 g 0 0
R3 g e 1
F1 h 0 V3 10
R4 h 0 1 $ comment
H1 i 0 v3 1k
D1 a b dx 2
.param rs=50 k={max(rs, 2)**2}
.model dx D (IS=1e-12 N=1.5
+ RS=2)
.op
.end
