/* simd_exp.h: scalar_exp (kernels/cpu/scalar.h) for sixteen floats, with the same bits. Included
 * after a v16_*.h. */
#pragma once

INLINE v16 v_exp(v16 x)
{
    v16 in = x;
    x = v_min(x, v_set1(88.37f));
    v16 n = v_round(v_mul(x, v_set1(1.44269504f)));
    v16 r = v_fma(n, v_set1(2.12194440e-4f), v_fma(n, v_set1(-0.693359375f), x));
    v16 p = v_fma(v_set1(1.9875691500e-4f), r, v_set1(1.3981999507e-3f));
    p = v_fma(p, r, v_set1(8.3334519073e-3f));
    p = v_fma(p, r, v_set1(4.1665795894e-2f));
    p = v_fma(p, r, v_set1(1.6666665459e-1f));
    p = v_fma(p, r, v_set1(5.0000001201e-1f));
    v16 y = v_add(v_fma(p, v_mul(r, r), r), v_set1(1.0f));
    v16i bits = vi_add(vi_of_float(y), vi_shl(vi_from(n), 23));
    return v_where_above(in, -87.3365f, vi_as_float(bits));
}
