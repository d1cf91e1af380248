#include "plan/models.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <vector>

#include "base/nearest.h"
#include "dgc/error.h"

namespace dgc::plan {
namespace {

/// "ResNet-50" and "resnet_50" are "resnet50".
std::string plain(std::string_view name) {
  std::string text;
  for (const char c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) continue;
    text += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return text;
}

}  // namespace

std::span<const Workload> workloads() {
  static const std::array<Workload, 11> all = {{
      {"alexnet", "AlexNet", 60'965'224, 10'568, 8},
      {"resnet50", "ResNet-50", 25'557'032, 54'120, 54},
      {"vgg16", "VGG-16", 138'357'544, 13'416, 16},
      {"resnet110", "ResNet-110", 1'727'962, 8'106, 110},
      {"resnet56", "ResNet-56", 853'018, 4'074, 56},
      {"resnet20", "ResNet-20", 269'722, 1'386, 20},
      {"resnet8", "ResNet-8", 75'290, 490, 8},
      {"cnn", "CNN for 28x28 images", 224'714, 186, 5},
      {"lstm", "PTB 2 x 1500 LSTM", 51'034'000, 34'000, 5, true},
      {"deepspeech", "DeepSpeech 5 x 800 LSTM", 54'823'168, 72'192, 23, true},
      {"deepspeech-1200", "DeepSpeech 7 x 1200 GRU", 122'169'968, 117'792, 31, true},
  }};
  return all;
}

const Workload& workload_named(std::string_view name) {
  std::string wanted = plain(name);
  if (wanted == "ptb") wanted = "lstm";
  std::vector<std::string> names;
  for (const Workload& workload : workloads()) {
    if (plain(workload.name) == wanted) return workload;
    names.push_back(workload.name);
  }
  throw Error(ErrorCode::invalid_argument, "plan", fmt::format("--model '{}'", name),
              "there is no such model",
              fmt::format("did you mean '{}'? known: {}; any other by --parameters",
                          nearest(wanted, names), fmt::join(names, ", ")));
}

}  // namespace dgc::plan
