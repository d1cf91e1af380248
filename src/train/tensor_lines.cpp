#include "train/tensor_lines.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <nlohmann/json.hpp>

#include "train/record.h"
#include "train/settings.h"

namespace dgc::train {

nlohmann::ordered_json tensor_lines(const SgdReport& report, const std::string& mode) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const auto& tensor : report.tensors) {
    // The optimizer says what could be sparse; these modes select nothing.
    const bool whole = sends_all(mode) && tensor.mode == "sparse";
    all.push_back(to_json(TensorLine{.name = tensor.name,
                                     .shape = tensor.shape,
                                     .elements = static_cast<double>(tensor.elements),
                                     .mode = whole ? "dense" : tensor.mode,
                                     .why = whole ? "the mode sends everything" : tensor.why,
                                     .k = static_cast<double>(tensor.k),
                                     .bytes = static_cast<double>(tensor.bytes)}));
  }
  return all;
}

std::string hash_of(const torch::nn::Module& model) {
  std::uint64_t hash = 0;
  for (const auto& p : model.parameters()) {
    const torch::Tensor values = p.detach().contiguous();
    hash = XXH64(values.data_ptr(), values.nbytes(), hash);
  }
  return fmt::format("{:016x}", hash);
}

}  // namespace dgc::train
