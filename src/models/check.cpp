#include "models/check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "dgc/error.h"

namespace dgc::models {

std::int64_t checked_classes(const std::string& model, std::int64_t classes) {
  if (classes < 1)
    throw Error(ErrorCode::invalid_argument, model, "classes",
                fmt::format("{}, must be at least 1", classes));
  return classes;
}

void check_images(const std::string& model, const torch::Tensor& images, std::int64_t channels,
                  std::int64_t smallest, std::int64_t largest) {
  const auto fits = [&](std::int64_t side) { return side >= smallest && side <= largest; };
  if (images.dim() == 4 && images.size(0) > 0 && images.size(1) == channels &&
      fits(images.size(2)) && fits(images.size(3)))
    return;
  const std::string sides =
      smallest == largest ? fmt::format("of {}", smallest) : fmt::format("from {} on", smallest);
  throw Error(ErrorCode::shape_mismatch, model, "images",
              fmt::format("{}, but (batch, {}, height, width) with sides {} is needed",
                          shape_of(images), channels, sides));
}

std::string shape_of(const torch::Tensor& tensor) {
  return fmt::format("({})", fmt::join(tensor.sizes().begin(), tensor.sizes().end(), ", "));
}

}  // namespace dgc::models
