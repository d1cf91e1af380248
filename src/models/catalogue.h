// Every model that is known by name: its sizes, and what the paper says of it. One list for `dgc
// train`, `dgc plan`, `dgc sizes` and the tests that build the models and count. No tensors here.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace dgc::models {

struct Model {
  std::string name;   ///< as on the command line
  std::string title;  ///< as in the paper, for tables
  std::string what;   ///< one line, for people
  /// Of the size that the paper trains, for its data; presets may have less.
  std::uint64_t parameters = 0;
  std::uint64_t one_dimensional = 0;  ///< of them, in tensors that are sent whole
  int tensors = 1;                    ///< of more dimensions: each has a frame of its own
  bool clipped = false;               ///< by the norm of the whole gradient, as RNNs are
  /// Settings of `dgc train synthetic` that build it, a JSON object; empty: `--model NAME` does.
  std::string settings = {};
  /// Settings of a step that `dgc sizes` measures, a JSON object; empty: it does not.
  std::string measured = {};
  double paper_ratio = 0.0;  ///< the paper's compression ratio; 0: it gives none
  std::string note = {};     ///< where ours is not the paper's, and why

  std::uint64_t sparse() const { return parameters - one_dimensional; }
};

/// All of them: for images, for words, for speech.
std::span<const Model> catalogue();

/// The model of that name or title, however it is written: "ResNet-50" and "resnet_50" are
/// "resnet50". nullptr if there is none.
const Model* find_model(std::string_view name);
/// The same, but throws Error(invalid_argument) with the nearest name. `operation` and `option` are
/// for the message: "plan", "--model"; `otherwise` is added to its hint.
const Model& model_named(std::string_view name, const std::string& operation,
                         const std::string& option, const std::string& otherwise = {});

}  // namespace dgc::models
