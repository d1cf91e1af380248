// Classification of images. Each worker takes its part of the step's examples, augmented by numbers
// that seed, epoch and example give; the loss is cross-entropy, the metrics top-1 and top-5.
#include <fmt/format.h>

#include <functional>

#include "dgc/collectives.h"
#include "dgc/error.h"
#include "models/alexnet.h"
#include "models/cifar_resnet.h"
#include "models/cnn.h"
#include "models/resnet.h"
#include "models/vgg.h"
#include "train/image_sources.h"
#include "train/read_once.h"
#include "train/recipe.h"
#include "train/task.h"

namespace dgc::train {
namespace {

struct ImageModel {
  std::shared_ptr<torch::nn::Module> module;
  std::function<torch::Tensor(torch::Tensor)> forward;
};

template <typename Holder>
ImageModel as_image_model(Holder model) {
  return {model.ptr(), [model](torch::Tensor x) mutable { return model->forward(std::move(x)); }};
}

/// The side of the images that a model was made for, where data come in all sizes.
std::int64_t crop_size(const Settings& settings) {
  if (settings.image_size > 0) return settings.image_size;
  return settings.model == "alexnet" ? 227 : 224;
}

ImageModel make_model(const Settings& settings, const ImageData& data) {
  const std::string& name = settings.model;
  if (name == "cnn") return as_image_model(models::make_cnn(data.classes));
  if (name == "alexnet") return as_image_model(models::make_alexnet(data.classes));
  if (name == "vgg16") return as_image_model(models::make_vgg16(data.classes));
  if (name == "resnet50") return as_image_model(models::make_resnet50(data.classes));
  const int depth = std::stoi(name.substr(std::string("resnet").size()));
  return as_image_model(models::make_cifar_resnet(depth, data.classes, data.channels));
}

class ImageTask : public Task {
 public:
  ImageTask(const Settings& settings, Place place)
      : Task(settings),
        place_(place),
        data_(read_once(settings,
                        [&] {
                          return std::make_shared<const ImageData>(
                              open_images(settings, crop_size(settings)));
                        })),
        order_(data_->train->count(), settings.seed),
        model_(make_model(settings, *data_)),
        batch_(batch_of_worker(settings, place.workers)) {
    require_examples(data_->train->count(), place, "images to train with");
    if (settings.model == "cnn" &&
        (data_->height != 28 || data_->width != 28 || data_->channels != 1)) {
      throw Error(ErrorCode::invalid_argument, "train", "--model cnn",
                  "is for grey images of 28 x 28", "use a ResNet");
    }
  }

  torch::nn::Module& model() override { return *model_.module; }
  MetricInfo metric() const override { return {"top-1 accuracy", "%", true}; }
  std::vector<std::string> facts() const override { return {data_->what}; }
  std::int64_t positions() const override { return data_->train->count(); }
  std::int64_t positions_of_step() const override { return batch_ * place_.workers; }

  Batch batch(const Draw& draw) const override {
    const auto order = order_.of(draw.epoch);
    Batch batch = read(*data_->train, examples_of(order, draw, place_), draw.epoch);
    batch.weight = weight_of(batch.examples, draw, place_);
    return batch;
  }

  torch::Tensor loss_of(const Batch& batch) override {
    return torch::nn::functional::cross_entropy(model_.forward(batch.input).to(torch::kFloat),
                                                batch.target);
  }

  /// Sums of loss, top-1 and top-5 hits, images.
  std::vector<double> evaluate(Split) override {
    const torch::NoGradGuard no_grad;
    model().eval();
    std::vector<double> sums(4);
    const Range mine =
        part_of(static_cast<std::size_t>(data_->valid->count()), place_.workers, place_.rank);
    constexpr std::size_t kAtOnce = 100;
    for (std::size_t first = mine.begin; first < mine.end; first += kAtOnce) {
      std::vector<std::int64_t> some;
      for (std::size_t i = first; i < std::min(first + kAtOnce, mine.end); ++i) {
        some.push_back(static_cast<std::int64_t>(i));
      }
      const Batch batch = read(*data_->valid, some, 0);
      if (batch.examples == 0) continue;
      const torch::Tensor logits = model_.forward(batch.input);
      const std::int64_t five = std::min<std::int64_t>(5, data_->classes);
      const torch::Tensor best = std::get<1>(logits.topk(five, 1)).eq(batch.target.unsqueeze(1));
      sums[0] += torch::nn::functional::cross_entropy(
                     logits, batch.target,
                     torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum))
                     .item<double>();
      sums[1] += best.select(1, 0).sum().item<double>();
      sums[2] += best.sum().item<double>();
      sums[3] += static_cast<double>(batch.examples);
    }
    model().train();
    return sums;
  }

  Scores scores(std::span<const double> sums) const override {
    const double count = sums[3];
    if (count == 0.0) nothing_to_evaluate();
    return {
        sums[0] / count,
        {{"top-1 accuracy", 100.0 * sums[1] / count}, {"top-5 accuracy", 100.0 * sums[2] / count}}};
  }

 private:
  /// Images that cannot be read are left out.
  Batch read(const ImageSource& source, std::span<const std::int64_t> which,
             std::uint64_t epoch) const {
    const std::int64_t plane = data_->height * data_->width;
    const auto size = static_cast<std::size_t>(data_->channels * plane);
    const auto count = static_cast<std::int64_t>(which.size());
    Batch batch;
    batch.input = torch::empty({count, data_->channels, data_->height, data_->width});
    batch.target = torch::empty({count}, torch::kLong);
    std::vector<std::uint8_t> bytes(size);
    for (const std::int64_t i : which) {
      try {
        source.read(i, epoch, bytes);
      } catch (const Error& error) {
        problems().add(error);
        continue;
      }
      float* out = batch.input.data_ptr<float>() + batch.examples * static_cast<std::int64_t>(size);
      const std::uint8_t* in = bytes.data();
      for (std::int64_t c = 0; c < data_->channels; ++c) {
        const float scale = 1.0f / (255.0f * data_->deviation[static_cast<std::size_t>(c)]);
        const float shift = data_->mean[static_cast<std::size_t>(c)] /
                            data_->deviation[static_cast<std::size_t>(c)];
        for (std::int64_t p = 0; p < plane; ++p) *out++ = static_cast<float>(*in++) * scale - shift;
      }
      batch.target.data_ptr<std::int64_t>()[batch.examples++] = source.label(i);
    }
    batch.input = batch.input.narrow(0, 0, batch.examples);
    batch.target = batch.target.narrow(0, 0, batch.examples);
    return batch;
  }

  Place place_;
  std::shared_ptr<const ImageData> data_;
  ShuffledOrder order_;
  ImageModel model_;
  std::int64_t batch_;
};

}  // namespace

std::unique_ptr<Task> make_image_task(const Settings& settings, Place place) {
  return std::make_unique<ImageTask>(settings, place);
}

}  // namespace dgc::train
