#include "data/images.h"

#include <fmt/format.h>

#include "dgc/error.h"

namespace dgc::data {

void require_same_shape(const ImageSet& train, const ImageSet& test) {
  const auto shape = [](const ImageSet& set) {
    return fmt::format("{} x {} x {}", set.channels, set.height, set.width);
  };
  if (shape(train) == shape(test)) return;
  throw Error(ErrorCode::shape_mismatch, "read images", "test images",
              fmt::format("are of {}, those of training of {}", shape(test), shape(train)),
              "take both from the same data set");
}

}  // namespace dgc::data
