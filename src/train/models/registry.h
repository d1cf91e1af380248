// The models by name, for lists and error messages. No tensors here.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dgc::train {

struct ModelInfo {
  std::string name;
  std::string what;          ///< one line, for people
  std::uint64_t parameters;  ///< of the size that the paper trains; smaller presets have less
};

/// All models, images first.
const std::vector<ModelInfo>& model_list();

/// The model of that name, or nullptr.
const ModelInfo* find_model(std::string_view name);

}  // namespace dgc::train
