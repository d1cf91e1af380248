#include "train/image_sources.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/random.h"
#include "data/augment.h"
#include "data/catalogue.h"
#include "data/cifar.h"
#include "data/idx.h"
#include "data/image_folder.h"
#include "data/jpeg.h"
#include "train/recipe.h"

namespace dgc::train {
namespace {

/// Some of a source's images, by a list of their numbers.
std::vector<std::int64_t> chosen(std::int64_t count, std::int64_t limit) {
  // The same whatever the seed: another seed is not another data set. Data may be sorted by class.
  auto all = permutation(count, Random{0x636f756e74});
  if (limit > 0 && limit < count) all.resize(static_cast<std::size_t>(limit));
  std::sort(all.begin(), all.end());
  return all;
}

class ImagesInMemory : public ImageSource {
 public:
  ImagesInMemory(data::ImageSet set, std::int64_t limit, bool augment, std::int64_t seed)
      : set_(std::move(set)),
        chosen_(chosen(set_.count, limit)),
        augment_(augment),
        seed_(static_cast<std::uint64_t>(seed)) {}

  std::int64_t count() const override { return static_cast<std::int64_t>(chosen_.size()); }
  std::int64_t label(std::int64_t i) const override {
    return set_.labels[static_cast<std::size_t>(chosen_[static_cast<std::size_t>(i)])];
  }
  void read(std::int64_t i, std::uint64_t epoch, std::span<std::uint8_t> out) const override {
    const auto image = set_.image(chosen_[static_cast<std::size_t>(i)]);
    if (!augment_) {
      std::copy(image.begin(), image.end(), out.begin());
      return;
    }
    Random random{seed_, epoch, static_cast<std::uint64_t>(i), 1};
    data::pad_crop_flip(image, out, static_cast<int>(set_.channels), static_cast<int>(set_.height),
                        static_cast<int>(set_.width), 4, random);
  }

 private:
  data::ImageSet set_;
  std::vector<std::int64_t> chosen_;
  bool augment_;
  std::uint64_t seed_;
};

class JpegImages : public ImageSource {
 public:
  JpegImages(data::ImageFolder folder, std::int64_t limit, std::int64_t size, bool augment,
             std::int64_t seed)
      : folder_(std::move(folder)),
        chosen_(chosen(static_cast<std::int64_t>(folder_.entries.size()), limit)),
        size_(static_cast<int>(size)),
        augment_(augment),
        seed_(static_cast<std::uint64_t>(seed)) {}

  std::int64_t count() const override { return static_cast<std::int64_t>(chosen_.size()); }
  std::int64_t label(std::int64_t i) const override { return entry(i).label; }
  void read(std::int64_t i, std::uint64_t epoch, std::span<std::uint8_t> out) const override {
    // Everybody's: the shorter side is 256 where the crop is 224.
    const int shorter = size_ * 256 / 224;
    const data::Picture picture = data::decode_jpeg(entry(i).file, shorter);
    if (!augment_) return data::centre_crop(picture, shorter, size_, out);
    Random random{seed_, epoch, static_cast<std::uint64_t>(i), 2};
    data::random_resized_crop(picture, size_, random, out);
  }

 private:
  const data::ImageFolder::Entry& entry(std::int64_t i) const {
    return folder_.entries[static_cast<std::size_t>(chosen_[static_cast<std::size_t>(i)])];
  }
  data::ImageFolder folder_;
  std::vector<std::int64_t> chosen_;
  int size_;
  bool augment_;
  std::uint64_t seed_;
};

/// Noise around a brightness that depends on the class, so that there is something to learn.
class SyntheticImages : public ImageSource {
 public:
  SyntheticImages(std::int64_t count, std::int64_t classes) : count_(count), classes_(classes) {}
  std::int64_t count() const override { return count_; }
  std::int64_t label(std::int64_t i) const override {
    return static_cast<std::int64_t>(
        Random{3, static_cast<std::uint64_t>(i)}.below(static_cast<std::uint64_t>(classes_)));
  }
  void read(std::int64_t i, std::uint64_t, std::span<std::uint8_t> out) const override {
    Random random{4, static_cast<std::uint64_t>(i)};
    const auto base = static_cast<std::uint64_t>(label(i) * 128 / classes_);
    for (std::size_t at = 0; at < out.size(); at += 8) {
      std::uint64_t bits = random.bits();
      for (std::size_t b = at; b < std::min(out.size(), at + 8); ++b, bits >>= 8) {
        out[b] = static_cast<std::uint8_t>(base + (bits & 127));
      }
    }
  }

 private:
  std::int64_t count_, classes_;
};

ImageData in_memory(data::ImageSet train, data::ImageSet valid, const Settings& settings,
                    bool augment) {
  data::require_same_shape(train, valid);
  ImageData data;
  data.channels = train.channels;
  data.height = train.height;
  data.width = train.width;
  data.classes = static_cast<std::int64_t>(train.classes.size());
  data.train =
      std::make_unique<ImagesInMemory>(std::move(train), settings.examples, augment, settings.seed);
  data.valid = std::make_unique<ImagesInMemory>(std::move(valid), 0, false, settings.seed);
  return data;
}

ImageData synthetic(const Settings& settings, std::int64_t size) {
  const bool small = settings.model.starts_with("resnet") && settings.model != "resnet50";
  ImageData data;
  data.channels = settings.model == "cnn" ? 1 : 3;
  data.height = data.width = settings.model == "cnn" ? 28 : small ? 32 : size;
  data.classes = settings.model == "cnn" || small ? 10 : 1000;
  data.mean.fill(0.5f);
  data.deviation.fill(0.25f);
  data.train = std::make_unique<SyntheticImages>(settings.examples, data.classes);
  data.valid = std::make_unique<SyntheticImages>(std::min<std::int64_t>(settings.examples, 64),
                                                 data.classes);
  data.what = "generated images";
  return data;
}

}  // namespace

ImageData open_images(const Settings& settings, std::int64_t size) {
  if (settings.recipe == "synthetic") return synthetic(settings, size);
  const auto folder = data::find_data(recipe_named(settings.recipe).data, settings.data);
  ImageData data;
  if (settings.recipe == "fashion") {
    data::ImageSet train = data::load_idx(folder, true);
    data = in_memory(std::move(train), data::load_idx(folder, false), settings, false);
    data.mean.fill(0.2860f);
    data.deviation.fill(0.3530f);
  } else if (settings.recipe == "cifar10") {
    data::ImageSet train = data::load_cifar10(folder, true);
    data = in_memory(std::move(train), data::load_cifar10(folder, false), settings, true);
    data.mean = {0.4914f, 0.4822f, 0.4465f};
    data.deviation = {0.2470f, 0.2435f, 0.2616f};
  } else {
    data::ImageFolders folders = data::scan_image_folders(folder);
    data.channels = 3;
    data.height = data.width = size;
    data.classes = static_cast<std::int64_t>(folders.train.classes.size());
    data.mean = {0.485f, 0.456f, 0.406f};
    data.deviation = {0.229f, 0.224f, 0.225f};
    data.train = std::make_unique<JpegImages>(std::move(folders.train), settings.examples, size,
                                              true, settings.seed);
    data.valid =
        std::make_unique<JpegImages>(std::move(folders.valid), 0, size, false, settings.seed);
  }
  data.what = fmt::format("{}: {} images to train, {} to test, {} classes", folder.string(),
                          data.train->count(), data.valid->count(), data.classes);
  return data;
}

}  // namespace dgc::train
