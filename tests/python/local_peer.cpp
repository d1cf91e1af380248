// local_peer FOLDER WORKERS STEPS RATIO VALUES DENSE_VALUES DECAY MEAN ALGORITHM OUTER_LR
// OUTER_MOMENTUM: dgc::LocalSteps on threads, two local steps of SGD a round, fed the gradients
// that test_local_steps.py recorded. Writes the parameters, which begin at zero, and residual.RANK.
#include <torch/torch.h>

#include <cstdio>

#include "dgc/local_steps.h"
#include "recorded.h"

namespace {

using dgc::recorded::Folder;

template <typename Range>
void append(std::vector<float>& all, const Range& values) {
  all.insert(all.end(), values.begin(), values.end());
}

void train(const Folder& folder, dgc::Group& group, int steps,
           const dgc::LocalStepsOptions& options) {
  torch::OrderedDict<std::string, torch::Tensor> parameters;
  for (const dgc::TensorSpec& spec : folder.model()) {
    parameters.insert(spec.name, torch::zeros(spec.shape).set_requires_grad(true));
  }
  torch::optim::SGD inner(parameters.values(), torch::optim::SGDOptions(0.05));
  dgc::LocalSteps local(group, parameters, inner, options);
  dgc::recorded::Gradients recorded(folder, group.rank());
  for (int step = 0; step < steps; ++step) {
    auto values = recorded.next();
    for (std::size_t t = 0; t < values.size(); ++t) {
      torch::Tensor& p = parameters[t].value();
      p.mutable_grad() = torch::from_blob(values[t].data(), p.sizes()).clone();
    }
    local.step();
  }
  std::vector<float> residual;
  for (std::size_t t = 0; t < parameters.size(); ++t) {
    append(residual, local.state_of_rank().residual(t));
  }
  folder.write("residual." + std::to_string(group.rank()), std::as_bytes(std::span(residual)));
  if (group.rank() != 0) return;
  std::vector<float> all;
  for (const auto& item : parameters) {
    const torch::Tensor flat = item.value().detach().flatten();
    append(all, std::span(flat.data_ptr<float>(), static_cast<std::size_t>(flat.numel())));
  }
  folder.write("parameters", std::as_bytes(std::span(all)));
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 12) {
    throw std::runtime_error(
        "usage: local_peer FOLDER WORKERS STEPS RATIO VALUES DENSE_VALUES DECAY MEAN ALGORITHM "
        "OUTER_LR OUTER_MOMENTUM");
  }
  const Folder folder(argv[1]);
  const int steps = std::stoi(argv[3]);
  dgc::LocalStepsOptions options(2);
  options.schedule(dgc::Schedule(std::stod(argv[4])))
      .values(dgc::parse_value_type(argv[5]))
      .dense_values(dgc::parse_value_type(argv[6]))
      .residual_decay(std::stod(argv[7]))
      .mean(dgc::parse_mean(argv[8]))
      .algorithm(dgc::parse_algorithm(argv[9]))
      .outer_lr(std::stod(argv[10]))
      .outer_momentum(std::stod(argv[11]))
      // Owners have their ranges by bucket: one, as in Python.
      .bucket_bytes(1 << 30);
  dgc::recorded::on_all_ranks(std::stoi(argv[2]),
                              [&](dgc::Group& group) { train(folder, group, steps, options); });
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "local_peer: %s\n", error.what());
  return 1;
}
