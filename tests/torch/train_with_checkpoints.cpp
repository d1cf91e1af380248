// A worker for test_kill.py: trains with dropout and checkpoints as often as it can, and prints a
// hash of the final parameters. train_with_checkpoints FOLDER STEPS EVERY, with RANK, WORLD_SIZE
// and DGC_STORE set.
#include <fmt/format.h>
#include <torch/torch.h>

#include "dgc/checkpoint.h"
#include "dgc/engines.h"

namespace {

struct Net : torch::nn::Module {
  Net() {
    in = register_module("in", torch::nn::Linear(64, 256));
    norm = register_module("norm", torch::nn::BatchNorm1d(256));
    out = register_module("out", torch::nn::Linear(256, 10));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return out(torch::dropout(torch::relu(norm(in(x))), 0.5, true));
  }
  torch::nn::Linear in{nullptr}, out{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};

/// From the number of the step alone: the generator of the process belongs to dropout.
torch::Tensor numbers(std::uint64_t seed, std::int64_t rows, std::int64_t columns) {
  torch::Tensor x = torch::empty({rows, columns});
  float* const values = x.data_ptr<float>();
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    values[i] = static_cast<float>(seed >> 40) / static_cast<float>(1 << 24) - 0.5f;
  }
  return x;
}

void train(const std::filesystem::path& folder, std::uint64_t steps, std::uint64_t every) {
  torch::set_num_threads(1);
  const auto group = dgc::make_group("gloo", std::chrono::seconds(10));
  torch::manual_seed(static_cast<std::uint64_t>(group->rank()));
  Net net;
  dgc::Sgd sgd(
      *group, net,
      dgc::SgdOptions(0.05).momentum(0.9).weight_decay(1e-3).schedule(dgc::Schedule::paper(40)));
  dgc::load_checkpoint(folder, sgd);
  fmt::print("from {}\n", sgd.steps());
  std::fflush(stdout);
  while (sgd.steps() < steps) {
    const std::uint64_t seed = sgd.steps() * 1000 + static_cast<std::uint64_t>(group->rank());
    sgd.zero_grad();
    (net.forward(numbers(seed, 32, 64)) - numbers(seed + 500, 32, 10)).square().mean().backward();
    sgd.step();
    if (sgd.steps() % every == 0) dgc::save_checkpoint(folder, sgd);
  }
  // FNV-1a of all bits, in order.
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const auto& p : net.parameters()) {
    const auto* const bytes = static_cast<const unsigned char*>(p.data_ptr());
    for (std::size_t i = 0; i < p.nbytes(); ++i) hash = (hash ^ bytes[i]) * 0x100000001b3u;
  }
  fmt::print("final {:016x}\n", hash);
}

}  // namespace

int main(int count, char** words) {
  if (count != 4) return 2;
  try {
    train(words[1], std::stoull(words[2]), std::stoull(words[3]));
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
