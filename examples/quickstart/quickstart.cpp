// Two workers in one process: each compresses its gradient, both add up both messages.
#include <dgc/dgc.h>

#include <cmath>
#include <cstdio>
#include <vector>

int main() {
  const std::vector<dgc::TensorSpec> model = {dgc::TensorSpec::of("weight", {100, 100}),
                                              dgc::TensorSpec::of("bias", {100})};
  dgc::CompressOptions options;
  options.schedule = dgc::Schedule(0.01);  // send 1 % of every weight tensor
  options.values = dgc::ValueType::fp16;   // rounding errors stay in the residual
  dgc::State states[] = {dgc::State(model, 0, 2), dgc::State(model, 1, 2)};  // rank 0, 1 of 2
  dgc::Compressor workers[] = {{states[0], options}, {states[1], options}};

  std::vector<float> weight(10'000, 0.0f), bias(100, 0.0f);
  const float lr = 0.1f;
  for (int step = 0; step < 100; ++step) {
    std::vector<std::vector<std::byte>> messages;
    for (dgc::Compressor& worker : workers) {
      // The gradient of |w - 1|^2 / 2; a real worker has its own mini-batch.
      std::vector<float> dw(weight), db(bias);
      for (float& x : dw) x -= 1.0f;
      for (float& x : db) x -= 1.0f;
      const dgc::Gradient gradients[] = {{0, dw}, {1, db}};
      std::vector<std::byte> message(worker.bound());
      message.resize(worker.compress(gradients, message));
      messages.push_back(std::move(message));
    }
    const std::span<float> parameters[] = {weight, bias};
    for (const auto& message : messages) dgc::decode_add(message, parameters, -lr);
    for (dgc::Compressor& worker : workers) worker.commit();
    if (step % 20 == 0) {
      std::printf("step %2d: %zu bytes instead of %zu\n", step, messages[0].size(),
                  4 * (weight.size() + bias.size()));
    }
  }
  std::printf("bias[0] after 100 steps: %.3f (goal 1)\n", static_cast<double>(bias[0]));
  return std::fabs(bias[0] - 1.0f) < 0.1f ? 0 : 1;
}
