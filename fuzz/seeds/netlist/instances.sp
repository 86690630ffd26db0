instances
.global vdd
.subckt half in out params: r=1k k={r/2}
R1 in mid {r}
R2 mid out 'k'
R3 mid vdd 1
.ends half
.subckt pair a b
X1 a m half r=10
X2 m b half
.ends
Xp in 0 pair
Vin in 0 1
Rv vdd 0 1
.dc vin 0 1 0.25
