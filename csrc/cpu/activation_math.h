// Activations of a vector: computed in float, for results that are rounded to T. None subtracts numbers
// that are close to each other, so the error is small everywhere, the far negative side included: a few
// units in float's last place, if times_sigmoid (simd_math.h) does not say more for this T.
#pragma once

#include "simd_math.h"

namespace quire::QUIRE_ISA {
namespace {

template <class T>
struct Gelu {
  // x · Φ(x) = max(x, 0) - |x| · (1 - Φ(|x|))
  static Vec of(Vec x) {
    const Vec a = abs(x);
    return sub(max(zero(), x), mul(min(broadcast(15.0f), a), normal_tail(a)));
  }
};

template <class T>
struct GeluTanh {
  // (1 + tanh(u)) / 2 is the logistic function of 2 u.
  static Vec of(Vec x) {
    const Vec cube = mul(mul(x, x), x);
    const Vec inner = fma(broadcast(0.044715f), cube, x);
    return times_sigmoid<T>(x, mul(broadcast(1.5957691216f), inner));  // 2 sqrt(2 / pi)
  }
};

template <class T>
struct QuickGelu {
  static Vec of(Vec x) { return times_sigmoid<T>(x, mul(broadcast(1.702f), x)); }
};

template <class T>
struct Relu {
  static Vec of(Vec x) { return max(zero(), x); }
};

template <class T>
struct Relu2 {
  static Vec of(Vec x) {
    const Vec positive = max(zero(), x);
    return mul(positive, positive);
  }
};

struct Scale {
  Vec factor;
  Vec of(Vec x) const { return mul(x, factor); }
};

struct Softcap {
  Vec cap;
  Vec of(Vec x) const { return mul(cap, tanh(div(x, cap))); }
};

// linear · x + positive · x², and below 0 linear · x + negative · (exp(x) - 1 - x).
struct Xielu {
  Vec positive, negative, linear;
  Vec of(Vec x) const {
    const Vec above = max(zero(), x), below = min(zero(), x);
    const Vec bent = fma(positive, mul(above, above), mul(negative, sub(expm1(below), below)));
    return fma(linear, x, bent);
  }
};

template <class T>
struct SiluTimes {
  static Vec of(Vec gate, Vec up) { return mul(times_sigmoid<T>(gate, gate), up); }
};

template <class T>
struct GeluTanhTimes {
  static Vec of(Vec gate, Vec up) { return mul(GeluTanh<T>::of(gate), up); }
};

template <class T>
struct GeluTimes {
  static Vec of(Vec gate, Vec up) { return mul(Gelu<T>::of(gate), up); }
};

template <class T>
struct Relu2Times {
  static Vec of(Vec gate, Vec up) { return mul(Relu2<T>::of(gate), up); }
};

// SwiGLU as in gpt-oss: both halves are clamped, and up is moved by 1. NaN stays.
template <class T>
struct SwigluOaiTimes {
  static Vec of(Vec gate, Vec up) {
    const Vec limit = broadcast(7.0f);
    const Vec low = min(limit, gate);
    const Vec clamped = max(broadcast(-7.0f), min(limit, up));
    return mul(times_sigmoid<T>(low, mul(broadcast(1.702f), low)), add(clamped, broadcast(1.0f)));
  }
};

}  // namespace
}  // namespace quire::QUIRE_ISA
