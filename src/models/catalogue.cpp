#include "models/catalogue.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cctype>
#include <vector>

#include "base/nearest.h"
#include "dgc/error.h"

namespace dgc::models {
namespace {

std::string plain(std::string_view name) {
  std::string text;
  for (const char c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) continue;
    text += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return text;
}

}  // namespace

std::span<const Model> catalogue() {
  static const std::array<Model, 17> all = {{
      {.name = "alexnet",
       .title = "AlexNet",
       .what = "AlexNet for ImageNet, as in Caffe",
       .parameters = 60'965'224,
       .one_dimensional = 10'568,
       .tensors = 8,
       .measured = R"({"batch": 8})",
       .paper_ratio = 597.0},
      {.name = "resnet50",
       .title = "ResNet-50",
       .what = "ResNet-50 for ImageNet",
       .parameters = 25'557'032,
       .one_dimensional = 54'120,
       .tensors = 54,
       .measured = R"({"batch": 4})",
       .paper_ratio = 277.0},
      {.name = "vgg16",
       .title = "VGG-16",
       .what = "VGG-16 for ImageNet",
       .parameters = 138'357'544,
       .one_dimensional = 13'416,
       .tensors = 16,
       .measured = R"({"batch": 2})"},
      {.name = "resnet110",
       .title = "ResNet-110",
       .what = "He's ResNet-110 for small images",
       .parameters = 1'727'962,
       .one_dimensional = 8'106,
       .tensors = 110,
       .measured = R"({"batch": 16})"},
      {.name = "resnet56",
       .title = "ResNet-56",
       .what = "He's ResNet-56 for small images",
       .parameters = 853'018,
       .one_dimensional = 4'074,
       .tensors = 56},
      {.name = "resnet20",
       .title = "ResNet-20",
       .what = "He's ResNet-20 for small images",
       .parameters = 269'722,
       .one_dimensional = 1'386,
       .tensors = 20},
      {.name = "resnet8",
       .title = "ResNet-8",
       .what = "a ResNet of 8 layers, to try things with",
       .parameters = 75'290,
       .one_dimensional = 490,
       .tensors = 8},
      {.name = "cnn",
       .title = "CNN for 28x28 images",
       .what = "3 convolutions for 28x28 images, without batch normalisation",
       .parameters = 224'714,
       .one_dimensional = 186,
       .tensors = 5},
      {.name = "lstm",
       .title = "PTB",
       .what = "word language model, 2 x 1500 LSTM with tied embeddings",
       .parameters = 51'034'000,
       .one_dimensional = 34'000,
       .tensors = 5,
       .clipped = true,
       .measured = R"({"batch": 4, "bptt": 10})",
       .paper_ratio = 462.0},
      // Transformers, as GPT-2. The smaller ones have the vocabulary and the context of the recipe.
      {.name = "gpt-1m",
       .title = "GPT 1M",
       .what = "transformer, 4 layers of 128, 1,024 tokens, context 128",
       .parameters = 940'800,
       .one_dimensional = 6'912,
       .tensors = 18,
       .clipped = true},
      {.name = "gpt-4m",
       .title = "GPT 4M",
       .what = "transformer, 4 layers of 256, 2,048 tokens, context 256",
       .parameters = 3'749'376,
       .one_dimensional = 13'824,
       .tensors = 18,
       .clipped = true},
      {.name = "gpt-12m",
       .title = "GPT 12M",
       .what = "transformer, 6 layers of 384, 4,096 tokens, context 256",
       .parameters = 12'318'720,
       .one_dimensional = 30'720,
       .tensors = 26,
       .clipped = true},
      {.name = "gpt-30m",
       .title = "GPT 30M",
       .what = "transformer, 8 layers of 512, 8,192 tokens, context 512",
       .parameters = 29'676'544,
       .one_dimensional = 54'272,
       .tensors = 34,
       .clipped = true},
      {.name = "gpt2",
       .title = "GPT-2 small",
       .what = "transformer, 12 layers of 768, 50,257 tokens, context 1,024",
       .parameters = 124'439'808,
       .one_dimensional = 121'344,
       .tensors = 50,
       .clipped = true,
       .measured = R"({"batch": 1})"},
      {.name = "deepspeech",
       .title = "DeepSpeech-AN4",
       .what = "Deep Speech 2, 5 x 800 bidirectional LSTM",
       .parameters = 54'823'168,
       .one_dimensional = 72'192,
       .tensors = 23,
       .clipped = true,
       .measured = R"({"batch": 4})"},
      // Known recipes have two convolutions, as deepspeech.pytorch; the paper's size is that of
      // three, as in Deep Speech 2.
      {.name = "deepspeech-1200",
       .title = "DeepSpeech 7 x 1200 GRU",
       .what = "Deep Speech 2, 7 x 1200 bidirectional GRU, 2 convolutions",
       .parameters = 122'169'968,
       .one_dimensional = 117'792,
       .tensors = 31,
       .clipped = true,
       .settings = R"({"model": "deepspeech", "hidden": 1200, "layers": 7, "rnn": "gru"})"},
      {.name = "deepspeech-1200-conv3",
       .title = "DeepSpeech-LibriSpeech",
       .what = "Deep Speech 2, 7 x 1200 bidirectional GRU, 3 convolutions: the paper's size",
       .parameters = 127'948'688,
       .one_dimensional = 118'080,
       .tensors = 32,
       .clipped = true,
       .settings = R"({"model": "deepspeech", "hidden": 1200, "layers": 7, "rnn": "gru",
                       "convolutions": 3})",
       .measured = R"({"batch": 4})",
       .paper_ratio = 608.0,
       .note = "The recurrent layers' 100,800 biases are sent whole here. Selected with the "
               "weights, as where a layer is one array, they would leave 0.80 MiB: the published "
               "ratio (612, by arithmetic)."},
  }};
  return all;
}

const Model* find_model(std::string_view name) {
  const std::string wanted = plain(name);
  for (const Model& model : catalogue()) {
    if (plain(model.name) == wanted || plain(model.title) == wanted) return &model;
  }
  return nullptr;
}

const Model& model_named(std::string_view name, const std::string& operation,
                         const std::string& option, const std::string& otherwise) {
  if (const Model* model = find_model(name)) return *model;
  std::vector<std::string> names;
  for (const Model& model : catalogue()) names.push_back(model.name);
  throw Error(ErrorCode::invalid_argument, operation, fmt::format("{} '{}'", option, name),
              "there is no such model",
              fmt::format("{}known: {}{}", did_you_mean(plain(name), names), fmt::join(names, ", "),
                          otherwise));
}

}  // namespace dgc::models
