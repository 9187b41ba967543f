"""The papers' iterations, one function per algorithm.

Most return a `guard.Guarded`, an iterator with one state per epoch; `Falkon` is one of
iterations, `newton` and `conjugate_gradient` are generators; `direct` solves without
iterating. Around the epochs run `guard` (goes back and halves the step) and
`step_search` (races and trials of steps, shorter steps on outliers).

Nystrom kernel ridge regression and NYTRO take whole paths from one factorization.
Notation of the papers: Z holds the m centers, K_mm = K(Z, Z), K_nm = K(X, Z), R R' =
K_mm^+; the rows have weights W with the sum N (without weights the papers' n). A model
is f(x) = phi(x)' b, b the papers' beta, with the features ::

    phi(x) = R' K(Z, x),   Phi = K_nm R   (the papers' A)

so that ``|f|^2 = |b|^2``, and the coefficients of K(Z, x) are R b (equation 21). With
B = Phi' W Phi / N and q = Phi' W y / N the coefficients b are ::

    NKRLS  b = (B + lambda I)^-1 q
    NYTRO  b_t = b_{t-1} - gamma (B b_{t-1} - q),  b_0 = 0

With B = V diag(e) V' both apply a filter g to the eigenvalues, b = V g(e) V' q: one
factorization gives every lambda and every t.

On the full kernel (Z = X: KRLS, early stopping) the two formulas are those of the dual,
equations 10 and 12 of the paper, which do not square the condition number of K ::

    f(x) = phi(x)' b,  phi(x) = W^1/2 K(X, x),  B = W^1/2 K W^1/2 / N,  q = W^1/2 y / N

These B and q are not Phi' W Phi / N and Phi' W y / N, and ``|f|^2 = N b' B b`` is not
``|b|^2``.

Camoriano, Angles, Rudi, Rosasco, "NYTRO: when subsampling meets early stopping",
AISTATS 2016: equations 15 to 21. Some of them have misprints. Equations 16 and 17 lack
the factor n of lambda that 15 and 18 have. Equation 20 lacks an R: K_nm beta must be
K_nm R beta. Theorem 5 asks for gamma < |K_nm R|^2; it must be gamma <= n / |K_nm R|^2 =
1 / max(e), as its example, gamma = 1 / max k(x, x), always is. The paper computes R
from a QR decomposition of K_mm, this package by Cholesky, pivoted if K_mm is singular.

Read `paths` (R and g), `moments` (B and q), `left_out` (errors)
and `descent` (NYTRO step by step). N times its gradient is `CenterProblem.gradient` of
equation 20, and `RowProblem.gradient` of 12. `fitting.rules` chooses t on held-out
rows.
"""
