// Images for training, wherever they come from.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "train/settings.h"

namespace dgc::train {

/// Labelled images of one size. All functions may be called from several threads.
class ImageSource {
 public:
  virtual ~ImageSource() = default;
  virtual std::int64_t count() const = 0;
  virtual std::int64_t label(std::int64_t i) const = 0;
  /// Image i as it is to be seen in `epoch`, channels x height x width bytes. Throws Error when it
  /// cannot be read.
  virtual void read(std::int64_t i, std::uint64_t epoch, std::span<std::uint8_t> out) const = 0;
};

struct ImageData {
  std::unique_ptr<ImageSource> train, valid;
  std::int64_t channels = 0, height = 0, width = 0, classes = 0;
  /// Of the bytes over 255, by channel.
  std::array<float, 3> mean = {}, deviation = {1.0f, 1.0f, 1.0f};
  std::string what;  ///< one line
};

/// The data of the recipe that the settings name. `size` is the side of crops, for pictures of
/// different sizes. Throws Error for files that are missing or damaged.
ImageData open_images(const Settings& settings, std::int64_t size);

}  // namespace dgc::train
