// Finding the k entries of largest magnitude.
//
// The scheme, one fused pass: the accumulating pass collects every entry that reaches a
// guessed threshold; if at least k did, the k largest are among them and a trim finds them exactly,
// whatever the guess was. Only where fewer than k passed, or far too many, a second pass over v
// finds the threshold by histogram. What reaches a second, higher guess is taken out of u and v by
// the pass itself, while it has them in registers; of candidates between the two guesses the trim
// decides, and it never looks at the others. Should that guess have taken k or more, everything is
// put back and selected the long way. Hence the result never depends on the guess, on how it was
// made, or on how the tensor was cut up for threads. (Paper, section 5: hierarchical selection;
// there the trim happens only where far too many pass, and a shortfall is accepted.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "compress/candidates.h"
#include "compress/kernels.h"

namespace dgc::compress {

struct KthLargest {
  std::uint32_t magnitude;
  std::size_t ties;   // entries of that magnitude among the k largest
  std::size_t equal;  // entries of that magnitude in all
};
/// The k-th largest of `magnitudes` (1 <= k <= size), which are overwritten. Linear time.
KthLargest kth_largest(std::span<std::uint32_t> magnitudes, std::size_t k) noexcept;

/// A threshold that at least k entries of v reach, and not many more; 1 (every non-zero entry)
/// where v has no k non-zero entries. `histogram` is scratch memory.
std::uint32_t exact_threshold(std::span<const float> v, std::size_t k,
                              std::vector<std::uint32_t>& histogram);

/// Inputs of a guess from a sample: v as it will be after this step's accumulation.
struct SampleSource {
  std::span<const float> gradient;
  std::span<const float> velocity;  // empty for rules without one
  std::span<const float> residual;
  Rule rule;
  float scale;
  float momentum;
  std::uint64_t seed;
};

/// A threshold that, judging by a stratified sample, somewhat more than k entries will reach;
/// kNoCandidates where the tensor is too small for sampling to pay.
std::uint32_t sampled_threshold(const SampleSource& source, std::size_t k,
                                std::vector<std::uint32_t>& scratch);

/// The guess for the next step, carried per tensor.
class CarriedThreshold {
 public:
  /// kNoCandidates when nothing is known for this k.
  std::uint32_t guess(std::size_t k) const noexcept;
  /// How many candidates the next guess should let through: more than k, because a shortfall costs
  /// a pass over v and a surplus a few nanoseconds an entry.
  std::size_t aim(std::size_t k) const noexcept;
  /// From where on an entry is all but certain to be selected; kNoCandidates when nothing is known
  /// for this k. Most of the selected reach it: the more there are, the more of them.
  std::uint32_t sure(std::size_t k) const noexcept;
  /// k or more were as good as certain: aim higher for a while.
  void was_too_sure() noexcept;
  /// The guess let through fewer than k: the magnitudes move about, so aim higher for a while.
  void fell_short() noexcept;
  /// After a selection of k, the least of which is `smallest`, out of `found` that reached `used`.
  void update(std::size_t found, std::size_t k, std::uint32_t smallest,
              std::uint32_t used) noexcept;

 private:
  std::uint32_t threshold_ = kNoCandidates;
  std::uint32_t smallest_ = 0;  // selected at the last step
  double growth_ = 0.0;         // of smallest_ per step, in log units, smoothed
  double deviation_ = 0.0;      // from that growth, likewise
  std::size_t k_ = 0;
  double margin_ = kLeastMargin;  // candidates aimed at, in units of k
  double slope_ = 8.0;            // of the tail: count ~ threshold^-slope
  double doubt_ = kLeastDoubt;    // share of k that sure() leaves to the trim, in log units

  static constexpr double kLeastMargin = 1.08;
  static constexpr double kMostMargin = 4.0;
  static constexpr double kLeastDoubt = 0.01;
  static constexpr double kMostDoubt = 3.0;
};

/// Memory to trim in.
struct TrimScratch {
  CandidateList doubtful;  // candidates that were not sure; then those of them that were selected
  CandidateList bucket;
  std::vector<std::uint32_t> magnitudes;
};

struct Trimmed {
  std::size_t found;       // candidates there were
  std::size_t selected;    // k, or all of them where there are no more than k
  std::uint32_t smallest;  // magnitude selected; 0 when there were none
  bool too_sure;           // `sure` let k or more through: nothing was selected
};
/// Selects the k largest candidates (ties: lowest index first), or all of them where there are no
/// more than k. They are those with a magnitude of `smallest` or more: where several are alike and
/// not all of them are wanted, the others leave the lists. Fewer than k may have a magnitude of
/// `sure` or more.
Trimmed trim(const Kernels& kernels, std::span<CandidateList> candidates, std::size_t k,
             std::uint32_t sure, TrimScratch& scratch);

/// Arrays that grow and keep their contents from step to step.
struct SelectedEntries {
  std::vector<std::uint32_t> indices;
  std::vector<float> values;
  std::vector<float> velocities;  // empty where they are not wanted

  EntryArrays arrays() noexcept {
    return {indices.data(), values.data(), velocities.empty() ? nullptr : velocities.data()};
  }
  void resize(std::size_t count, bool with_velocities) {
    indices.resize(count);
    values.resize(count);
    velocities.resize(with_velocities ? count : 0);
  }
};
/// Writes what trim() selected to `out`, in index order.
void gather(const Kernels& kernels, CandidateLists candidates, const Trimmed& trimmed,
            bool with_velocities, SelectedEntries& out);

}  // namespace dgc::compress
