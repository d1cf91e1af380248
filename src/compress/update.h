// The update rule, momentum correction (paper, eq. 4 to 6): what a gradient does to velocity u and
// residual v. The only place that spells it; kernels compute the same bits faster.
//
//     plain         v += g
//     heavy ball    u = m·u + g          v += u
//     Nesterov      u = m·(u + g)        v += u + g
//     decayed       v = beta·v + g       for rounds of local steps (SparseLoCo); no velocity
//
// Deviation: a velocity that has decayed below the normal range of float is dropped after it was
// added, and so is a residual that decays. Rows without gradient would otherwise multiply
// denormals, slowly, for ever.
#pragma once

#include <cfloat>
#include <cmath>
#include <span>

namespace dgc::compress {

enum class Rule { plain, heavy_ball, nesterov, decayed };
inline constexpr Rule kRules[] = {Rule::plain, Rule::heavy_ball, Rule::nesterov, Rule::decayed};

/// Whether u has a part in the rule.
inline constexpr bool has_velocity(Rule rule) noexcept {
  return rule == Rule::heavy_ball || rule == Rule::nesterov;
}

/// The rule of local momentum correction, or without momentum that of a residual decay below 1.
inline Rule rule_of(float momentum, bool nesterov, float decay = 1.0f) noexcept {
  if (momentum == 0.0f) return decay == 1.0f ? Rule::plain : Rule::decayed;
  return nesterov ? Rule::nesterov : Rule::heavy_ball;
}

/// u and v of one element; returns the new v. `g` is scaled already. `m` is the momentum, or beta.
template <Rule kRule>
inline float accumulate_one(float g, float* u, float* v, float m) noexcept {
  if constexpr (kRule == Rule::plain) return *v = *v + g;
  if constexpr (kRule == Rule::decayed) {
    const float rest = m * *v + g;
    return *v = std::fabs(rest) >= FLT_MIN ? rest : 0.0f;
  }
  float velocity = 0.0f;
  float sum = 0.0f;
  if constexpr (kRule == Rule::heavy_ball) {
    velocity = m * *u + g;
    sum = *v + velocity;
  } else {
    velocity = m * (*u + g);
    sum = (*v + velocity) + g;
  }
  *u = std::fabs(velocity) >= FLT_MIN ? velocity : 0.0f;
  return *v = sum;
}

/// The same where the rule is known at run time only.
inline float accumulate_one(Rule rule, float g, float* u, float* v, float m) noexcept {
  switch (rule) {
    case Rule::plain:
      break;
    case Rule::heavy_ball:
      return accumulate_one<Rule::heavy_ball>(g, u, v, m);
    case Rule::nesterov:
      return accumulate_one<Rule::nesterov>(g, u, v, m);
    case Rule::decayed:
      return accumulate_one<Rule::decayed>(g, u, v, m);
  }
  return accumulate_one<Rule::plain>(g, u, v, m);
}

/// Whole arrays of the same size, element after element: the reference for whoever computes it in
/// another way. `velocity` is looked at by rules that have one. Gradients are finite.
void accumulate(Rule rule, std::span<const float> gradient, std::span<float> velocity,
                std::span<float> residual, float scale, float momentum) noexcept;

}  // namespace dgc::compress
