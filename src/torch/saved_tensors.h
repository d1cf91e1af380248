// What checkpoints of an optimizer share: dictionaries of tensors, as torch.load reads them, and
// what is each rank's own in a file that all ranks write alike.
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/load.h"
#include "dgc/group.h"

namespace dgc::sgd {

inline constexpr const char* kModelFile = "model.pt";
inline constexpr const char* kOptimizerFile = "optimizer.pt";
inline constexpr const char* kGiven = "given";  ///< by the caller, of this rank

using Dictionary = c10::Dict<std::string, torch::Tensor>;

std::vector<char> pickled(const Dictionary& dictionary);
/// Throws Error(bad_state) that names `subject`.
Dictionary unpickled(std::span<const std::byte> bytes, const std::string& subject);

/// A contiguous copy: a view would be pickled with all of its storage.
torch::Tensor snapshot(const torch::Tensor& tensor);

/// Of libtorch's default generator.
torch::Tensor random_state();
void set_random_state(const torch::Tensor& state);

/// Adds "rank/R/NAME" for every entry of every rank R's `mine`. A collective call.
void add_of_all_ranks(Group& group, const Dictionary& mine, Dictionary& all);

/// The tensors of a shared file, looked up by name.
class SavedTensors {
 public:
  SavedTensors(const checkpoint::Checkpoint& checkpoint, const char* file);

  bool has(const std::string& name) const { return tensors_.contains(name); }
  /// Undefined where there is none of that name.
  torch::Tensor get(const std::string& name) const {
    return has(name) ? tensors_.find(name)->value() : torch::Tensor();
  }
  /// Throws Error unless it is there, with this shape and type.
  const torch::Tensor& at(const std::string& name, const torch::Tensor& like) const;
  const std::string& subject() const noexcept { return subject_; }

 private:
  std::string subject_;
  Dictionary tensors_;
};

/// What goes wrong with this rank alone is told to the others, who would wait for it.
template <typename Work>
auto telling_others(Group& group, const Work& work) {
  try {
    return work();
  } catch (const std::exception& error) {
    group.fail(as_error(error));
    throw;
  }
}

}  // namespace dgc::sgd
