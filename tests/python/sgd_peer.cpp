// sgd_peer FOLDER WORKERS STEPS RATIO VALUES NESTEROV ALGORITHM CORRECTION: dgc::Sgd on threads,
// fed the gradients that test_wire.py recorded. Writes u and v of each rank as state.RANK, and the
// parameters, which begin at zero, as parameters.
#include <torch/torch.h>

#include <cstdio>

#include "dgc/sgd.h"
#include "recorded.h"

namespace {

using dgc::recorded::Folder;

void train(const Folder& folder, dgc::Group& group, int steps, const dgc::SgdOptions& options) {
  torch::OrderedDict<std::string, torch::Tensor> parameters;
  for (const dgc::TensorSpec& spec : folder.model()) {
    parameters.insert(spec.name, torch::zeros(spec.shape).set_requires_grad(true));
  }
  dgc::Sgd optimizer(group, {{parameters, dgc::SgdGroupOptions(options.lr())}}, options);
  dgc::recorded::Gradients recorded(folder, group.rank());
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    auto values = recorded.next();
    torch::Tensor loss = torch::zeros({});
    for (std::size_t t = 0; t < values.size(); ++t) {
      torch::Tensor& p = parameters[t].value();
      loss = loss + (p * torch::from_blob(values[t].data(), p.sizes())).sum();
    }
    loss.backward();
    optimizer.step();
  }
  optimizer.state_of_rank().save(folder.file("state." + std::to_string(group.rank())));
  if (group.rank() != 0) return;
  std::vector<float> all;
  for (const auto& item : parameters) {
    const torch::Tensor flat = item.value().detach().flatten();
    all.insert(all.end(), flat.data_ptr<float>(), flat.data_ptr<float>() + flat.numel());
  }
  folder.write("parameters", std::as_bytes(std::span(all)));
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 9)
    throw std::runtime_error(
        "usage: sgd_peer FOLDER WORKERS STEPS RATIO VALUES NESTEROV ALGORITHM CORRECTION");
  const Folder folder(argv[1]);
  const int steps = std::stoi(argv[3]);
  dgc::SgdOptions options(0.05);
  options.momentum(0.9)
      .nesterov(std::string(argv[6]) == "1")
      .schedule(dgc::Schedule(std::stod(argv[4])))
      .values(dgc::parse_value_type(argv[5]))
      .algorithm(dgc::parse_algorithm(argv[7]))
      .momentum_correction(dgc::parse_momentum_correction(argv[8]))
      // Owners have their ranges by bucket: one, as in Python. All-gather does not depend on it.
      .bucket_bytes(std::string(argv[7]) == "owner" ? 1 << 30 : 8000);
  dgc::recorded::on_all_ranks(std::stoi(argv[2]),
                              [&](dgc::Group& group) { train(folder, group, steps, options); });
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "sgd_peer: %s\n", error.what());
  return 1;
}
