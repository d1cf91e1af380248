// Deep Gradient Compression by hand: the compressor and the wire format, without any network or
// framework. Link dgc::core.
//
// Two workers learn the same linear function, y = W x + b, each from examples of its own. They live
// in one process here, and a message is a vector of bytes. In a real program each worker is a
// process, and the bytes go over whatever connects them. (dgc::engines does that for you: see
// dgc/exchange.h.)
//
// Each step has four parts, which are marked below:
//
//   1. compress   a worker adds its gradient to what it has not sent yet, and selects the largest
//                 entries of the sum
//   2. send       here: put the message where both workers find it
//   3. apply      every worker subtracts everybody's entries from its parameters
//   4. commit     the step has happened; entries that were not sent wait for a later step
#include <dgc/compressor.h>

#include <cstdio>
#include <random>
#include <span>
#include <vector>

namespace {

constexpr std::size_t kInputs = 100, kOutputs = 100, kBatch = 16;
constexpr int kWorkers = 2, kSteps = 400;
constexpr float kLearningRate = 0.002f;

/// W and b; also the shape of their gradient.
struct Linear {
  std::vector<float> weight = std::vector<float>(kOutputs * kInputs);
  std::vector<float> bias = std::vector<float>(kOutputs);

  float output(std::size_t row, std::span<const float> x) const {
    float y = bias[row];
    for (std::size_t i = 0; i < kInputs; ++i) y += weight[row * kInputs + i] * x[i];
    return y;
  }
};

/// The gradient of half the squared error on a mini-batch of random inputs: its mean over the
/// examples. Adds the error itself to `loss`.
Linear gradient_of(const Linear& model, const Linear& goal, std::mt19937& random, double& loss) {
  std::normal_distribution<float> sample;
  Linear gradient;
  std::vector<float> x(kInputs);
  for (std::size_t example = 0; example < kBatch; ++example) {
    for (float& value : x) value = sample(random);
    for (std::size_t row = 0; row < kOutputs; ++row) {
      const float error = model.output(row, x) - goal.output(row, x);
      loss += 0.5 * static_cast<double>(error) * static_cast<double>(error) / kBatch;
      gradient.bias[row] += error / kBatch;
      for (std::size_t i = 0; i < kInputs; ++i) {
        gradient.weight[row * kInputs + i] += error * x[i] / kBatch;
      }
    }
  }
  return gradient;
}

/// A worker has a copy of the parameters, examples of its own, and a State: of each tensor the
/// momentum u and the gradient v that it has not sent yet. The State belongs to the caller, who can
/// save and load it; the Compressor works on it.
struct Worker {
  Worker(int rank, const std::vector<dgc::TensorSpec>& tensors, const dgc::CompressOptions& options)
      : random(static_cast<unsigned>(rank)),
        state(tensors, static_cast<std::uint32_t>(rank), kWorkers),
        compressor(state, options) {}

  Linear model;
  std::mt19937 random;
  dgc::State state;
  dgc::Compressor compressor;
};

}  // namespace

int main() {
  // Names and shapes. Tensors with two dimensions are sent sparsely, those with one are small and
  // are sent whole.
  const std::vector<dgc::TensorSpec> tensors = {dgc::TensorSpec::of("weight", {kOutputs, kInputs}),
                                                dgc::TensorSpec::of("bias", {kOutputs})};

  // A warm-up: 25 % of the entries for 50 steps, 5 % for another 50, then 1 %. Momentum is part of
  // the compression: do not apply it again. Values travel with 16 bits; what rounding takes away
  // stays in v and is sent later.
  dgc::CompressOptions options;
  options.schedule = dgc::Schedule::stages({0.25, 0.05}, 50, 0.01);
  options.momentum = 0.9f;
  options.values = dgc::ValueType::fp16;
  Worker workers[kWorkers] = {{0, tensors, options}, {1, tensors, options}};

  Linear goal;  // what is to be learned
  std::mt19937 random(17);
  std::normal_distribution<float> sample;
  for (float& value : goal.weight) value = sample(random);
  for (float& value : goal.bias) value = sample(random);

  const std::size_t dense_bytes = 4 * (kOutputs * kInputs + kOutputs);
  std::printf("A gradient has %zu bytes.\n\n", dense_bytes);
  std::printf("%5s %12s %14s %12s\n", "step", "loss", "bytes sent", "compression");
  double first_loss = 0.0, loss = 0.0;
  std::size_t all_bytes = 0;
  for (int step = 0; step < kSteps; ++step) {
    loss = 0.0;
    std::vector<std::vector<std::byte>> messages;
    for (Worker& worker : workers) {
      const Linear gradient = gradient_of(worker.model, goal, worker.random, loss);

      // 1. Compress. bound() is the most that the message of this step can take. The compressor
      // divides by the number of workers, so that the sum of all messages is the mean gradient.
      const dgc::Gradient gradients[] = {{0, gradient.weight}, {1, gradient.bias}};
      std::vector<std::byte> message(worker.compressor.bound());
      message.resize(worker.compressor.compress(gradients, message));

      // 2. Send: to everybody, oneself too.
      messages.push_back(std::move(message));
    }
    loss /= kWorkers;

    for (Worker& worker : workers) {
      // 3. Apply, in the order of the ranks: sums of floats depend on it, and all workers must come
      // to the same bits. A message is checked completely before anything is added.
      const std::span<float> parameters[] = {worker.model.weight, worker.model.bias};
      for (const auto& message : messages) {
        dgc::decode_add(dgc::CheckedMessage(message), parameters, -kLearningRate);
      }

      // 4. Commit. If a message had been lost: restore(), which puts the selected entries back.
      worker.compressor.commit();
    }

    all_bytes += messages[0].size();
    if (step == 0) first_loss = loss;
    if (step % 50 == 0 || step + 1 == kSteps) {
      std::printf("%5d %12.4f %14zu %11.1fx\n", step, loss, messages[0].size(),
                  static_cast<double>(dense_bytes) / static_cast<double>(messages[0].size()));
    }
  }

  const bool same = workers[0].model.weight == workers[1].model.weight;
  const bool learned = loss < 0.01 * first_loss;
  std::printf("\n%zu bytes sent by each worker instead of %zu.\n", all_bytes, kSteps * dense_bytes);
  std::printf("Both workers have %s parameters. The loss fell to %.2g of what it was.\n",
              same ? "the same" : "DIFFERENT", loss / first_loss);
  return same && learned ? 0 : 1;
}
