// What a run's record says of the model's tensors.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "dgc/sgd.h"

namespace dgc::train {

/// For tensors.json.
nlohmann::ordered_json tensor_lines(const SgdReport& report, const std::string& mode);

/// Of all parameters, as text: equal where every bit is.
std::string hash_of(const torch::nn::Module& model);

}  // namespace dgc::train
