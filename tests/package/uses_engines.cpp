// Every header of dgc::engines, compiled and linked outside the project: two workers exchange a
// gradient.
#include <dgc/collectives.h>
#include <dgc/engines.h>
#include <dgc/exchange.h>

#include <future>

int main() {
  const std::vector<dgc::TensorSpec> model = {dgc::TensorSpec::of("w", {10, 10})};
  const auto groups = dgc::make_local_groups(2);
  const auto work = [&](dgc::Group& group) {
    dgc::Exchange exchange(group, model, {.schedule = dgc::Schedule(0.05)});
    const std::vector<float> gradient(100, 1.0f);
    std::vector<float> parameters(100, 0.0f);
    const dgc::Gradient gradients[] = {{0, gradient}};
    const std::span<float> targets[] = {parameters};
    exchange.step(gradients, targets, -1.0f);
    dgc::barrier(group);
    return parameters[0];
  };
  auto other = std::async(std::launch::async, [&] { return work(*groups[1]); });
  const float first = work(*groups[0]);
  // The first five of equal entries, from both workers: -1 in all.
  return first == -1.0f && other.get() == -1.0f && !dgc::engines().empty() ? 0 : 1;
}
