// message_peer FOLDER WORKERS STEPS RATIO VALUES SCHEMA: the C++ side of test_wire.py. Every worker
// compresses the gradients of gradients.RANK and writes its messages as cpp.RANK.STEP; then adds
// what Python wrote as python.RANK.STEP, in the order of the ranks, and writes the sums as
// sum.STEP.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "dgc/compressor.h"
#include "dgc/error.h"
#include "recorded.h"

namespace {

using dgc::recorded::Folder;

void compress(const Folder& folder, std::uint32_t rank, std::uint32_t workers, int steps,
              const dgc::CompressOptions& options) {
  dgc::State state(folder.model(), rank, workers);
  dgc::Compressor compressor(state, options);
  dgc::recorded::Gradients recorded(folder, static_cast<int>(rank));
  for (int step = 0; step < steps; ++step) {
    const std::vector<std::vector<float>> values = recorded.next();
    std::vector<dgc::Gradient> gradients;
    for (std::size_t t = 0; t < values.size(); ++t) gradients.push_back({t, values[t]});
    const dgc::Notice notice{.present = std::vector<bool>(values.size(), true)};
    std::vector<std::byte> message(compressor.bound() + dgc::notice_bytes(notice));
    message.resize(compressor.compress(gradients, message, {.notice = &notice}));
    compressor.commit();
    folder.write("cpp." + std::to_string(rank) + "." + std::to_string(step), message);
  }
}

void add(const Folder& folder, std::uint32_t workers, int step) {
  std::vector<std::vector<float>> sums;
  std::vector<std::span<float>> targets;
  for (const dgc::TensorSpec& spec : folder.model()) sums.emplace_back(spec.elements());
  for (auto& sum : sums) targets.emplace_back(sum);
  for (std::uint32_t rank = 0; rank < workers; ++rank) {
    const auto message = folder.read("python." + std::to_string(rank) + "." + std::to_string(step));
    const dgc::CheckedMessage checked(message);
    dgc::decode_add(checked, targets);
    const dgc::MessageHeader& header = checked.header();
    if (header.sender != rank || header.step != static_cast<std::uint64_t>(step)) {
      throw std::runtime_error("a message of another rank or step");
    }
  }
  std::vector<float> all;
  for (const auto& sum : sums) all.insert(all.end(), sum.begin(), sum.end());
  folder.write("sum." + std::to_string(step), std::as_bytes(std::span(all)));
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 7)
    throw std::runtime_error("usage: message_peer FOLDER WORKERS STEPS RATIO VALUES SCHEMA");
  const Folder folder(argv[1]);
  const auto workers = static_cast<std::uint32_t>(std::stoul(argv[2]));
  const int steps = std::stoi(argv[3]);
  const dgc::CompressOptions options{.schedule = dgc::Schedule(std::stod(argv[4])),
                                     .values = dgc::parse_value_type(argv[5]),
                                     .schema = static_cast<std::uint32_t>(std::stoul(argv[6]))};
  for (std::uint32_t rank = 0; rank < workers; ++rank) {
    compress(folder, rank, workers, steps, options);
  }
  for (int step = 0; step < steps; ++step) add(folder, workers, step);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "message_peer: %s\n", error.what());
  return 1;
}
