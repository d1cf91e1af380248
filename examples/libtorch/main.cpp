// Trains a small network on Fashion-MNIST with several workers and Deep Gradient Compression.
//
// If you know torch::optim::SGD, you know most of this program. What is different when you train
// with dgc is marked with "dgc 1" to "dgc 5", in the order in which a program needs it:
//
//   dgc 1   make a group: who trains with us
//   dgc 2   give each worker its own part of the data
//   dgc 3   make a dgc::Sgd in place of a torch::optim::SGD
//   dgc 4   save checkpoints, and resume from them
//   dgc 5   look at what was sent
//
// Everything else (the network, the loss, backward, the learning rate) stays as you know it. All
// workers run the same program. Read main() at the end for how it starts, then train().
//
// Start it in one of these ways:
//
//   mnist --data fashion                        one worker: plain training, nothing is sent
//   mnist --data fashion --threads 4            four workers, as threads of this process
//   mpirun -n 4 mnist --data fashion            four processes, on one machine or several
//   RANK=0 WORLD_SIZE=4 MASTER_ADDR=host0 MASTER_PORT=29500 mnist --data fashion
//                                               one of four processes, with the variables that
//                                               torchrun sets; start the others with RANK=1, 2, 3
#include <dgc/checkpoint.h>
#include <dgc/engines.h>
#include <dgc/sgd.h>
#include <torch/torch.h>

#include <atomic>
#include <charconv>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <future>
#include <stdexcept>
#include <string>
#include <vector>

namespace data = torch::data;
namespace nn = torch::nn;
using data::datasets::MNIST;  // Fashion-MNIST has the same files, with pictures of clothes

struct Options {
  std::string data = ".";
  std::int64_t epochs = 5;
  std::int64_t steps = 0;          // 0: as many as the epochs have
  std::int64_t batch = 128;        // of all workers together
  std::int64_t examples = 60'000;  // of the 60,000 for training
  std::int64_t test_examples = 10'000;
  std::int64_t seed = 1;
  std::int64_t log_every = 50;
  std::int64_t threads = 0;            // 0: this process is one worker
  std::string schedule = "paper:1ep";  // the paper's warm-up in one epoch, then 0.1 %
  std::string checkpoints;             // "": none
  std::int64_t checkpoint_every = 200;
};

constexpr const char* kHelp =
    R"(Trains a small network on Fashion-MNIST (or MNIST) with Deep Gradient Compression.

usage: mnist --data DIR [options]

  --data DIR             folder with train-images-idx3-ubyte and the other three files, unpacked
                         (default: the current folder)
  --epochs N             how often to go through the images (default 5)
  --steps N              stop after N steps, even within an epoch
  --batch N              images a step, of all workers together (default 128)
  --examples N           train on the first N images only (default 60000)
  --test-examples N      measure accuracy on the first N test images only (default 10000)
  --seed N               of the first parameters and the order of the images (default 1)
  --schedule S           how much of each gradient to send (default paper:1ep):
                           paper:1ep         warm up for 1 epoch from 25 % to 0.4 %, then 0.1 %
                           0.001             0.1 % from the first step on
                           0.25,0.01:100     25 % for 100 steps, then 1 %
                           1                 everything: ordinary synchronous SGD
  --threads N            N workers as threads of this process. Without it, this process is one
                         worker: of an mpirun, of a group by RANK, WORLD_SIZE, MASTER_ADDR and
                         MASTER_PORT, or alone
  --checkpoints DIR      save checkpoints there, and resume from the newest if there is one
  --checkpoint-every N   steps between checkpoints (default 200)
  --log-every N          steps between lines of output (default 50)
  --help                 this text

Ctrl-C stops all workers after the same step; with --checkpoints, the run can be resumed.
)";

Options parse_options(int argc, char** argv);
void check_data(const std::string& folder);

// Set by Ctrl-C. Workers look at it after each step.
std::atomic<bool> interrupted = false;

nn::Sequential make_net(std::int64_t seed) {
  torch::manual_seed(static_cast<std::uint64_t>(seed));
  return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(1, 16, 5).padding(2)), nn::ReLU(),
                        nn::MaxPool2d(2), nn::Conv2d(nn::Conv2dOptions(16, 32, 3).padding(1)),
                        nn::ReLU(), nn::MaxPool2d(2), nn::Flatten(), nn::Linear(1568, 128),
                        nn::ReLU(), nn::Linear(128, 10));
}

/// Percent of the first `count` test images that the network gets right.
double accuracy(nn::Sequential& net, const MNIST& test, std::int64_t count) {
  const torch::NoGradGuard no_grad;
  double correct = 0;
  for (std::int64_t from = 0; from < count; from += 1'000) {
    const std::int64_t to = std::min(count, from + 1'000);
    const auto guess = net->forward(test.images().slice(0, from, to)).argmax(1);
    correct += guess.eq(test.targets().slice(0, from, to)).sum().item<double>();
  }
  return 100.0 * correct / static_cast<double>(count);
}

/// The same number on all workers: dgc keeps their parameters equal bit for bit.
std::size_t hash_of_parameters(const nn::Sequential& net) {
  const torch::Tensor all = nn::utils::parameters_to_vector(net->parameters()).detach();
  const auto* const bytes = static_cast<const char*>(all.data_ptr());
  return std::hash<std::string_view>()({bytes, all.nbytes()});
}

/// What one worker does. With --threads several of these run in one process, each with its own
/// group and its own copy of the network.
void train(dgc::Group& group, nn::Sequential net, const MNIST& train_data, const MNIST& test_data,
           const Options& options) {
  // One worker is to use one core: several workers share a machine, and the result must not depend
  // on how many cores it has.
  torch::set_num_threads(1);
  const bool prints = group.rank() == 0;  // one worker speaks for all

  // dgc 2: each worker trains on its own part of every epoch and of every batch. The batch of a
  // step is `batch` images in all, whatever the number of workers is. The sampler gives all workers
  // the same number of images; that is needed, because all make the same number of steps.
  const std::int64_t workers = group.size();
  if (options.batch < workers) {
    throw std::invalid_argument("--batch " + std::to_string(options.batch) + " is too small for " +
                                std::to_string(workers) + " workers: each needs an image");
  }
  const std::int64_t batch_of_worker = options.batch / workers;
  const std::int64_t images_of_worker = (options.examples + workers - 1) / workers;
  const std::int64_t epoch_steps = (images_of_worker + batch_of_worker - 1) / batch_of_worker;
  auto examples = MNIST(train_data).map(data::transforms::Stack<>());
  data::samplers::DistributedRandomSampler sampler(static_cast<std::size_t>(options.examples),
                                                   static_cast<std::size_t>(workers),
                                                   static_cast<std::size_t>(group.rank()));

  // dgc 3: the optimizer. It takes the group and the whole module, and makes all workers'
  // parameters those of rank 0. Learning rate and momentum mean what they mean for
  // torch::optim::SGD. The schedule says which share of each weight tensor is sent at which step: a
  // warm-up, during which more is sent, keeps the accuracy. Biases are small and always sent whole.
  const dgc::Schedule schedule = dgc::Schedule::parse(options.schedule, epoch_steps);
  constexpr double kLearningRate = 0.05;
  // allgather is the exchange of the paper. Without this line dgc measures the network and chooses
  // what is fastest; then the last bits of a sum may differ from run to run.
  dgc::Sgd optimizer(group, *net,
                     dgc::SgdOptions(kLearningRate)
                         .momentum(0.9)
                         .schedule(schedule)
                         .algorithm(dgc::Algorithm::allgather));

  std::int64_t steps = options.epochs * epoch_steps;
  if (options.steps > 0) steps = std::min(steps, options.steps);
  const auto steps_done = [&] { return static_cast<std::int64_t>(optimizer.steps()); };
  const std::size_t parameters = nn::utils::parameters_to_vector(net->parameters()).numel();
  if (prints) {
    std::printf("workers: %ld (%s), batch: %ld images, steps: %ld, of %ld an epoch\n", workers,
                std::string(group.engine()).c_str(), batch_of_worker * workers, steps, epoch_steps);
    std::printf("parameters: %zu, a gradient has %.1f kB\n", parameters,
                4e-3 * static_cast<double>(parameters));
    std::printf("share of each gradient that is sent:\n%s\n", schedule.describe().c_str());
  }

  // dgc 4: checkpoints, first resuming. Every worker calls this. It restores the parameters, the
  // optimizer (with the gradients that were not sent yet) and the number of steps; training then
  // goes on bit for bit as if it had never stopped. The text is ours: here it says what must not
  // change in between.
  const std::string run = "seed " + std::to_string(options.seed) + ", batch " +
                          std::to_string(options.batch) + ", " + std::to_string(options.examples) +
                          " images, " + std::to_string(steps) + " steps, schedule " +
                          options.schedule;
  if (!options.checkpoints.empty()) {
    if (const auto found = dgc::load_checkpoint(options.checkpoints, optimizer)) {
      if (found->user != run) {
        throw std::invalid_argument(found->path.string() + " is of another run (" + found->user +
                                    "), this one is " + run +
                                    ": use the same options, or another folder");
      }
      if (prints) std::printf("resumed from %s\n\n", found->path.c_str());
    }
  }
  // Then saving, which every worker calls after the same step. A checkpoint is complete or not
  // there at all, even if a worker is killed meanwhile; the newest two are kept.
  std::int64_t last_saved = steps_done();
  const auto save = [&] {
    if (options.checkpoints.empty() || steps_done() == last_saved) return;
    last_saved = steps_done();
    const auto saved = dgc::save_checkpoint(options.checkpoints, optimizer, run);
    if (prints) std::printf("saved %s\n", saved.path.c_str());
  };

  // dgc 5: what the columns mean.
  //   sent          bytes that this worker has sent to all others since the last line
  //   message       bytes of its compressed gradient in this step
  //   compression   4 bytes for each parameter over `message`: how many times less that is
  double bytes_sent = 0, message_bytes = 0, sent_since = 0;
  std::int64_t steps_here = 0;  // since the program was started
  if (prints && steps_done() < steps) {
    std::printf("%8s %8s %10s %12s %12s %12s\n", "step", "epoch", "loss", "sent, kB", "message, kB",
                "compression");
  }

  torch::Tensor loss;
  double last_loss = 0;
  while (steps_done() < steps && !optimizer.stop_requested()) {
    const std::int64_t epoch = steps_done() / epoch_steps;
    // After a resume within an epoch, the batches that were used before it are passed over.
    std::int64_t used = steps_done() % epoch_steps;
    // All workers shuffle in the same way, so that their parts do not overlap.
    sampler.set_epoch(static_cast<std::size_t>(1'000 * options.seed + epoch));
    auto loader =
        data::make_data_loader(examples, sampler, static_cast<std::size_t>(batch_of_worker));
    for (auto& batch : *loader) {
      if (used-- > 0) continue;
      const std::int64_t step = steps_done();
      if (step == steps || optimizer.stop_requested()) break;
      // The learning rate falls along a cosine. libtorch's LRScheduler works too.
      optimizer.param_groups()[0].options().set_lr(
          kLearningRate / 2 *
          (1 + std::cos(M_PI * static_cast<double>(step) / static_cast<double>(steps))));

      // The loop that you know. backward() compresses and sends each part of the gradient as soon
      // as it is there; step() waits for what the others sent, and changes the parameters. The loss
      // is the mean over this worker's images: dgc averages over the workers.
      optimizer.zero_grad();
      loss = nn::functional::cross_entropy(net->forward(batch.data), batch.target);
      loss.backward();
      // If one worker asks to stop, all stop after the same step.
      if (interrupted) optimizer.request_stop();
      optimizer.step();

      const dgc::StepStats& stats = optimizer.stats();
      ++steps_here;
      bytes_sent += static_cast<double>(stats.bytes_up);
      message_bytes += static_cast<double>(stats.message_bytes);
      sent_since += static_cast<double>(stats.bytes_up);
      const std::int64_t done = steps_done();
      if (prints && (done % options.log_every == 0 || done == 1)) {
        std::printf("%8ld %8.2f %10.4f %12.1f %12.2f %11.1fx\n", done,
                    static_cast<double>(done) / static_cast<double>(epoch_steps),
                    loss.item<double>(), sent_since / 1e3,
                    static_cast<double>(stats.message_bytes) / 1e3, stats.message_ratio);
        std::fflush(stdout);
        sent_since = 0;
      }
      if (done % options.checkpoint_every == 0) save();
    }
    if (loss.defined()) last_loss = loss.item<double>();
    const std::int64_t done = steps_done();
    if (prints && done < steps && done % epoch_steps == 0) {
      std::printf("epoch %ld: accuracy %.2f %%\n", epoch + 1,
                  accuracy(net, test_data, options.test_examples));
    }
  }

  save();  // all workers: the next start of this run finds it
  if (!prints) return;
  if (steps_done() < steps) {
    std::printf("stopped after step %ld%s\n", steps_done(),
                options.checkpoints.empty() ? "" : "; start again to resume");
    return;
  }
  const double percent = accuracy(net, test_data, options.test_examples);
  if (steps_here == 0) {
    std::printf("this run had ended before, with an accuracy of %.2f %%\n", percent);
    return;
  }
  const double dense = 4.0 * static_cast<double>(parameters) * static_cast<double>(steps_here);
  std::printf(
      "\nThis worker's gradients took %.2f MB instead of %.2f MB, warm-up included. It sent "
      "%.2f MB to the others.\n",
      message_bytes / 1e6, dense / 1e6, bytes_sent / 1e6);
  std::printf("final accuracy %.2f loss %.4f message_ratio %.1f parameters_hash %zx\n", percent,
              last_loss, optimizer.stats().message_ratio, hash_of_parameters(net));
}

int main(int argc, char** argv) try {
  const Options options = parse_options(argc, argv);
  check_data(options.data);
  std::signal(SIGINT, [](int) { interrupted = true; });
  std::signal(SIGTERM, [](int) { interrupted = true; });
  const MNIST train_data(options.data, MNIST::Mode::kTrain);
  const MNIST test_data(options.data, MNIST::Mode::kTest);

  // dgc 1: a group is this worker's end of the connection to all others. make_group("auto") finds
  // out how the process was started: by mpirun, with RANK and WORLD_SIZE, or alone.
  std::vector<std::unique_ptr<dgc::Group>> groups;
  if (options.threads > 0) {
    groups = dgc::make_local_groups(static_cast<int>(options.threads));
  } else {
    const auto timeout = dgc::kDefaultTimeout;  // how long to wait for a worker that is silent
    groups.push_back(dgc::make_group("auto", timeout));
  }

  // One thread for each worker of this process: one, unless --threads says otherwise.
  std::vector<std::future<void>> workers;
  for (const auto& group : groups) {
    workers.push_back(std::async(std::launch::async, train, std::ref(*group),
                                 make_net(options.seed), std::cref(train_data),
                                 std::cref(test_data), std::cref(options)));
  }
  for (auto& worker : workers) worker.get();  // throws what the worker has thrown
  return 0;
} catch (const std::exception& error) {
  // dgc::Error says what was wrong, on which rank, and what to do about it.
  std::fprintf(stderr, "mnist: %s\n", error.what());
  return 1;
}

// From here on: reading the command line. Nothing about dgc.

std::int64_t parse_number(const std::string& name, const std::string& text, std::int64_t least,
                          std::int64_t most) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > most) {
    throw std::invalid_argument(name + " '" + text + "': give a whole number from " +
                                std::to_string(least) + " to " + std::to_string(most));
  }
  return value;
}

Options parse_options(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--help" || name == "-h") {
      std::fputs(kHelp, stdout);
      std::exit(0);
    }
    const auto text = [&]() -> std::string {
      if (i + 1 == argc) throw std::invalid_argument(name + " needs a value; see mnist --help");
      return argv[++i];
    };
    const auto number = [&](std::int64_t least, std::int64_t most) {
      return parse_number(name, text(), least, most);
    };
    constexpr std::int64_t kMany = 1'000'000'000;
    if (name == "--data") {
      options.data = text();
    } else if (name == "--epochs") {
      options.epochs = number(1, 100'000);
    } else if (name == "--steps") {
      options.steps = number(1, kMany);
    } else if (name == "--batch") {
      options.batch = number(1, 60'000);
    } else if (name == "--examples") {
      options.examples = number(1, 60'000);
    } else if (name == "--test-examples") {
      options.test_examples = number(1, 10'000);
    } else if (name == "--seed") {
      options.seed = number(0, kMany);
    } else if (name == "--schedule") {
      options.schedule = text();
    } else if (name == "--threads") {
      options.threads = number(0, 128);
    } else if (name == "--checkpoints") {
      options.checkpoints = text();
    } else if (name == "--checkpoint-every") {
      options.checkpoint_every = number(1, kMany);
    } else if (name == "--log-every") {
      options.log_every = number(1, kMany);
    } else {
      throw std::invalid_argument("there is no option " + name + "; mnist --help lists --data, " +
                                  "--epochs, --schedule, --threads and the others");
    }
  }
  return options;
}

void check_data(const std::string& folder) {
  for (const char* file : {"train-images-idx3-ubyte", "train-labels-idx1-ubyte",
                           "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"}) {
    const auto path = std::filesystem::path(folder) / file;
    if (std::filesystem::is_regular_file(path)) continue;
    const bool packed = std::filesystem::exists(path.string() + ".gz");
    throw std::invalid_argument(
        path.string() + " does not exist. " +
        (packed ? "Unpack " + path.string() + ".gz first"
                : "Give --data the folder with the four files of Fashion-MNIST. Debian's package "
                  "dataset-fashion-mnist has them in /usr/share/datasets/fashion-mnist") +
        ": for f in FROM/*.gz; do gunzip -c $f > TO/$(basename $f .gz); done");
  }
}
