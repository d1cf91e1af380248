// A small network on MNIST or Fashion-MNIST (uncompressed files), on up to 128 workers: threads by
// --threads 4; processes by mpirun -n 4, or with RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT set.
// --schedule 0.001 sends 0.1 % from the first step on; --schedule 1 is dense SGD.
#include <dgc/address_store.h>
#include <dgc/sgd.h>
#include <torch/torch.h>

#include <future>
#include <map>

namespace data = torch::data;
namespace nn = torch::nn;
using data::datasets::MNIST;

nn::Sequential make_net(std::uint64_t seed) {
  torch::manual_seed(seed);
  return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(1, 16, 5).padding(2)), nn::ReLU(),
                        nn::MaxPool2d(2), nn::Conv2d(nn::Conv2dOptions(16, 32, 3).padding(1)),
                        nn::ReLU(), nn::MaxPool2d(2), nn::Flatten(), nn::Linear(1568, 128),
                        nn::ReLU(), nn::Linear(128, 10));
}

double accuracy(nn::Sequential& net, const std::string& folder) {
  const torch::NoGradGuard no_grad;
  auto test = MNIST(folder, MNIST::Mode::kTest).map(data::transforms::Stack<>());
  const auto all = *data::make_data_loader(test, 10'000)->begin();
  return net->forward(all.data).argmax(1).eq(all.target).sum().item<double>() / 100.0;
}

void train(dgc::Group& group, nn::Sequential net, std::map<std::string, std::string> o) {
  torch::set_num_threads(1);  // per worker: results do not depend on the machine's cores
  auto examples = MNIST(o["--data"]).map(data::transforms::Stack<>());
  const int n = group.size(), size = 128 / n, epoch_steps = (60'000 / n - 1) / size + 1;
  const auto steps = std::min(std::stoul(o["--steps"]), std::stoul(o["--epochs"]) * epoch_steps);
  const auto schedule = dgc::Schedule::parse(o["--schedule"], epoch_steps);
  dgc::Sgd sgd(group, *net, dgc::SgdOptions(0.05).momentum(0.9).schedule(schedule));  // dgc 3/3
  for (std::size_t epoch = 0; sgd.steps() < steps; ++epoch) {
    data::samplers::DistributedRandomSampler sampler(60'000, n, group.rank());  // dgc 2/3
    sampler.set_epoch(1'000 * std::stoul(o["--seed"]) + epoch);
    torch::Tensor loss;
    for (auto loader = data::make_data_loader(examples, sampler, size); auto& batch : *loader) {
      if (sgd.steps() == steps) break;
      sgd.param_groups()[0].options().set_lr(0.025 + 0.025 * std::cos(M_PI * sgd.steps() / steps));
      sgd.zero_grad();
      loss = nn::functional::cross_entropy(net->forward(batch.data), batch.target);
      loss.backward();
      sgd.step();
    }
    if (group.rank() != 0) continue;
    const auto w = nn::utils::parameters_to_vector(net->parameters());
    const auto hash = std::hash<std::string_view>()({(char*)w.data_ptr(), w.nbytes()});
    std::printf("%s accuracy %.2f loss %.4f message_ratio %.1f parameters_hash %zx\n",
                sgd.steps() < steps ? "epoch" : "final", accuracy(net, o["--data"]),
                loss.item<double>(), sgd.stats().message_ratio, hash);
  }
}

int main(int argc, char** argv) try {
  std::map<std::string, std::string> o = {{"--data", "."},    {"--epochs", "5"},
                                          {"--seed", "1"},    {"--schedule", "paper:1ep"},
                                          {"--threads", "0"}, {"--steps", "1000000"}};
  for (int i = 1; i < argc; i += 2) {
    if (i + 1 == argc || !o.contains(argv[i]))
      throw std::invalid_argument(
          "--data D --epochs N --seed N --schedule S --threads N --steps N");
    o[argv[i]] = argv[i + 1];
  }
  auto groups = dgc::make_local_groups(std::max(1, std::stoi(o["--threads"])));
  if (const auto wait = dgc::kDefaultTimeout; o["--threads"] == "0")  // dgc 1/3
    groups[0] = dgc::make_group("auto", wait, dgc::address_store_from_environment(wait));
  std::vector<std::future<void>> workers;
  for (const auto& group : groups)
    workers.push_back(std::async(std::launch::async, train, std::ref(*group),
                                 make_net(std::stoul(o["--seed"])), o));
  for (auto& worker : workers) worker.get();
} catch (const std::exception& error) {
  return std::fprintf(stderr, "mnist: %s\n", error.what()), 1;
}
