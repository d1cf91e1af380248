#include "train/models/registry.h"

#include <algorithm>

namespace dgc::train {

const std::vector<ModelInfo>& model_list() {
  static const std::vector<ModelInfo> models = {
      {"cnn", "3 convolutions for 28x28 images, without batch normalisation", 224'714},
      {"resnet8", "a ResNet of 8 layers, to try things with", 75'290},
      {"resnet20", "He's ResNet-20 for small images", 269'722},
      {"resnet56", "He's ResNet-56 for small images", 853'018},
      {"resnet110", "He's ResNet-110 for small images", 1'727'962},
      {"alexnet", "AlexNet for ImageNet, as in Caffe", 60'965'224},
      {"resnet50", "ResNet-50 for ImageNet", 25'557'032},
      {"vgg16", "VGG-16 for ImageNet", 138'357'544},
      {"lstm", "word language model, 2 x 1500 LSTM with tied embeddings", 51'034'000},
      {"deepspeech", "Deep Speech 2, 5 x 800 bidirectional LSTM", 54'823'168},
      {"deepspeech-1200", "Deep Speech 2, 7 x 1200 bidirectional GRU", 122'169'968},
  };
  return models;
}

const ModelInfo* find_model(std::string_view name) {
  const auto& models = model_list();
  const auto found = std::find_if(models.begin(), models.end(),
                                  [&](const ModelInfo& model) { return model.name == name; });
  return found == models.end() ? nullptr : &*found;
}

}  // namespace dgc::train
