#include "bench/exchange_worker.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <span>

#include "base/choice.h"
#include "bench/bench.h"
#include "bench/exchange_rows.h"
#include "compress/internals.h"
#include "dgc/collectives.h"
#include "dgc/exchange.h"
#include "engine/native.h"
#include "exchange/shares.h"
#include "process/terminal.h"

namespace dgc::bench::exchange_bench {
namespace {

constexpr int kWarmup = 2;
/// Algorithms take turns, so that what disturbs the machine disturbs all of them alike. A turn is
/// one step that is not measured, because it finds the room that another algorithm's messages had,
/// and so many that are.
constexpr int kTurn = 2;
constexpr std::uint64_t kVerifiedElements = 200'000;
constexpr int kVerifiedSteps = 3;
constexpr float kAlpha = -0.1f;

/// All ranks draw from the same table, at places of their own.
const std::vector<float>& samples() {
  static const std::vector<float> table = [] {
    std::mt19937_64 random(1);
    std::normal_distribution<float> sample;
    std::vector<float> values(std::size_t{1} << 20);
    for (float& x : values) x = sample(random);
    return values;
  }();
  return table;
}

/// Gradients of one rank, step after step: everybody can repeat them.
class Gradients {
 public:
  Gradients(std::vector<Layer> layers, int rank)
      : layers_(std::move(layers)), source_(samples(), 1000 + static_cast<std::uint64_t>(rank)) {
    for (const Layer& layer : layers_) tensors_.emplace_back(layer.spec.elements());
    for (std::size_t t = 0; t < tensors_.size(); ++t) gradients_.push_back({t, tensors_[t]});
  }
  std::span<const Gradient> next() {
    for (std::size_t t = 0; t < tensors_.size(); ++t) source_.fill(tensors_[t], layers_[t].scale);
    return gradients_;
  }

 private:
  std::vector<Layer> layers_;
  GradientSource source_;
  std::vector<std::vector<float>> tensors_;
  std::vector<Gradient> gradients_;
};

std::vector<Layer> layers_of(std::uint64_t elements) {
  std::vector<Layer> layers = resnet50_layers(elements);
  std::erase_if(layers, [](const Layer& layer) { return layer.spec.elements() == 0; });
  return layers;
}
std::vector<TensorSpec> specs_of(const std::vector<Layer>& layers) {
  std::vector<TensorSpec> specs;
  for (const Layer& layer : layers) specs.push_back(layer.spec);
  return specs;
}

/// A model's parameters, all zero at first.
struct Parameters {
  explicit Parameters(const std::vector<TensorSpec>& model) {
    for (const TensorSpec& spec : model) tensors.emplace_back(spec.elements(), 0.0f);
    spans.assign(tensors.begin(), tensors.end());
  }
  std::vector<std::vector<float>> tensors;
  std::vector<std::span<float>> spans;
};

/// One rank's training with one algorithm.
class Trainer {
 public:
  Trainer(Group& group, const Options& options, const std::string& host, Algorithm algorithm,
          const std::vector<Layer>& layers, int check_every)
      : layers_(layers),
        model_(specs_of(layers_)),
        parameters_(model_),
        exchange_(group, model_, settings_of(options),
                  {.algorithm = algorithm,
                   .check_parameters_every = check_every,
                   .link = options.assumed_link(),
                   .host = host}) {}

  const std::vector<Layer>& layers() const { return layers_; }
  const std::vector<TensorSpec>& model() const { return model_; }
  const Parameters& parameters() const { return parameters_; }

  const Costs& costs() const { return exchange_.costs(); }
  void check_parameters() { exchange_.check_parameters(parameters_.spans); }
  const Collected& step(std::span<const Gradient> gradients) {
    return last_ = exchange_.step(gradients, parameters_.spans, kAlpha);
  }
  const Collected& last() const { return last_; }

  /// Bytes of the message of the last step, and elements that went without one.
  nlohmann::json load() {
    std::uint64_t frames = 0;
    std::uint64_t dense = 0;
    for (std::size_t t = 0; t < model_.size(); ++t) {
      if (last_.densely[t]) {
        dense += model_[t].elements();
      } else {
        frames += exchange_.stats()[t].frame.bytes;
      }
    }
    return {{"message_bytes", frames > 0 ? frames + kMessageOverhead : 0},
            {"dense_elements", dense}};
  }

 private:
  std::vector<Layer> layers_;
  std::vector<TensorSpec> model_;
  Parameters parameters_;
  Collected last_;
  Exchange exchange_;
};

[[noreturn]] void wrong(const std::string& subject, const std::string& problem) {
  throw Error(ErrorCode::invalid_argument, "verify", subject, problem,
              "the benchmark computed a wrong result: this is a bug in dgc");
}

/// Repeats all ranks' steps here, with compressors of their own, and sums in the order of the
/// ranks.
void compare_with_reference(Trainer& trainer, const Options& options, int workers,
                            Algorithm algorithm) {
  Parameters expected(trainer.model());
  struct Worker {
    Worker(const Trainer& t, const Options& o, int rank, int size)
        : gradients(t.layers(), rank),
          state(t.model(), static_cast<std::uint32_t>(rank), static_cast<std::uint32_t>(size)),
          compressor(state, settings_of(o)),
          message(compressor.bound()) {}
    Gradients gradients;
    State state;
    Compressor compressor;
    std::vector<std::byte> message;
  };
  std::vector<std::unique_ptr<Worker>> all;
  for (int r = 0; r < workers; ++r) {
    all.push_back(std::make_unique<Worker>(trainer, options, r, workers));
  }
  for (int step = 0; step < kVerifiedSteps; ++step) {
    for (const auto& w : all) {
      std::vector<Gradient> sparse;
      for (const Gradient& gradient : w->gradients.next()) {
        if (!trainer.last().densely[gradient.tensor]) {
          sparse.push_back(gradient);
          continue;
        }
        std::vector<float> values(gradient.values.size());
        compress::Internals::lay_out(w->compressor, {&gradient, 1}, values, ValueType::fp32, {});
        std::vector<float>& sum = expected.tensors[gradient.tensor];
        for (std::size_t i = 0; i < values.size(); ++i) sum[i] += kAlpha * values[i];
      }
      const std::size_t bytes = w->compressor.compress(sparse, w->message);
      decode_add(CheckedMessage(std::span(w->message).first(bytes)), expected.spans, kAlpha);
      w->compressor.commit();
    }
  }
  const bool exact = algorithm == Algorithm::allgather;
  for (std::size_t t = 0; t < expected.tensors.size(); ++t) {
    const std::vector<float>& a = trainer.parameters().tensors[t];
    const std::vector<float>& b = expected.tensors[t];
    float largest = 0.0f;
    for (const float x : b) largest = std::max(largest, std::fabs(x));
    for (std::size_t i = 0; i < a.size(); ++i) {
      const bool same = exact ? std::memcmp(&a[i], &b[i], sizeof(float)) == 0
                              : std::fabs(a[i] - b[i]) <= 1e-5f * largest;
      if (same) continue;
      wrong(trainer.model()[t].name, fmt::format("{} by {} at index {}, {} by the plain sum", a[i],
                                                 name_of(algorithm), i, b[i]));
    }
  }
}

nlohmann::json phases_json(const std::vector<Phase>& phases) {
  nlohmann::json list = nlohmann::json::array();
  for (const Phase& phase : phases) {
    list.push_back({{"name", phase.name},
                    {"bytes_sent", phase.traffic.bytes_sent},
                    {"bytes_received", phase.traffic.bytes_received},
                    {"messages", phase.traffic.messages_sent}});
  }
  return list;
}

double milliseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

/// Some steps of an algorithm on small tensors, compared with what they should be.
void verify(Group& group, const Options& options, const std::string& host, Algorithm algorithm) {
  const std::vector<Layer> layers = layers_of(std::min(options.elements, kVerifiedElements));
  Gradients gradients(layers, group.rank());
  Trainer trainer(group, options, host, algorithm, layers, 1);
  for (int i = 0; i < kVerifiedSteps; ++i) trainer.step(gradients.next());
  if (group.rank() == 0 && algorithm != Algorithm::owner && !exchange::in_shares(algorithm)) {
    compare_with_reference(trainer, options, group.size(), algorithm);
  }
}

/// One of those that are measured in turns.
class Contender {
 public:
  virtual ~Contender() = default;
  /// False where the engine cannot: then it is not measured.
  virtual bool possible() { return true; }
  /// Before each step, not measured.
  virtual void prepare() {}
  virtual void step(std::span<const Gradient> gradients) = 0;
  /// After all steps; checks what can be checked only now.
  virtual nlohmann::json result() = 0;

  std::vector<double> runs;
};

class Compressing final : public Contender {
 public:
  Compressing(Group& group, const Options& options, const std::string& host, Algorithm algorithm,
              const std::vector<Layer>& layers)
      : verified_(!options.no_verify) {
    if (verified_) verify(group, options, host, algorithm);
    // Hashing would be measured too: the parameters are compared after the measured steps.
    trainer_ = std::make_unique<Trainer>(group, options, host, algorithm, layers, 0);
  }
  void step(std::span<const Gradient> gradients) override { trainer_->step(gradients); }
  nlohmann::json result() override {
    nlohmann::json result = trainer_->load();
    result["phases"] = phases_json(trainer_->last().phases);
    result["choice"] = trainer_->last().choice;
    result["costs"] = costs_text(trainer_->costs());
    if (verified_) trainer_->check_parameters();
    return result;
  }

 private:
  bool verified_;
  std::unique_ptr<Trainer> trainer_;
};

/// The floats of the gradient, not compressed at all.
class Plain final : public Contender {
 public:
  Plain(Group& group, const Options& options, std::string algorithm)
      : group_(group),
        algorithm_(std::move(algorithm)),
        verified_(!options.no_verify),
        values_(options.elements) {}

  bool possible() override { return algorithm_ == kPlain || native_all_reduce(group_, values_); }
  /// Small whole numbers: sums are exact in any order.
  void prepare() override {
    for (std::size_t e = 0; e < values_.size(); ++e) {
      values_[e] = static_cast<float>((e % 61) * static_cast<std::size_t>(group_.rank() + 1));
    }
  }
  void step(std::span<const Gradient> /*gradients*/) override {
    const Traffic before = group_.traffic();
    if (algorithm_ == kPlain) {
      all_reduce(group_, values_);
      moved_ = group_.traffic() - before;
    } else {
      native_all_reduce(group_, values_);
      // Gloo does not count: what a ring moves.
      const auto peers = static_cast<std::uint64_t>(group_.size() - 1);
      const std::uint64_t bytes = values_.size() * 8 * peers / (peers + 1);
      moved_ = {bytes, bytes, 2 * peers};
    }
  }
  nlohmann::json result() override {
    const auto ranks = static_cast<std::size_t>(group_.size());
    const std::size_t sum_of_ranks = ranks * (ranks + 1) / 2;
    for (std::size_t e = 0; e < values_.size() && verified_; ++e) {
      const auto expected = static_cast<float>((e % 61) * sum_of_ranks);
      if (values_[e] != expected)
        wrong(algorithm_, fmt::format("{} at index {}, not {}", values_[e], e, expected));
    }
    return {{"message_bytes", 0},
            {"dense_elements", values_.size()},
            {"phases", phases_json({{"reduce-scatter and gather", moved_}})},
            {"choice", ""},
            {"costs", ""}};
  }

 private:
  Group& group_;
  std::string algorithm_;
  bool verified_;
  std::vector<float> values_;
  Traffic moved_;
};

/// Takes the room that was made for messages of the algorithm before.
void forget_rooms(Group& group) {
  for (int i = 0; i < 2; ++i) group.swap(std::span<const std::byte>{}, 0);
}

using Contenders = std::vector<std::pair<std::string, std::unique_ptr<Contender>>>;

void take_turns(Group& group, const Options& options, Gradients& gradients, Contenders& all) {
  std::erase_if(all, [&](const auto& one) {
    if (!one.second->possible()) return true;
    for (int i = 0; i < kWarmup; ++i) {
      one.second->prepare();
      one.second->step(gradients.next());
    }
    return false;
  });
  const auto steps = static_cast<std::size_t>(options.steps);
  process::ProgressBar progress("steps", steps * all.size(), options.quiet || group.rank() != 0);
  while (!all.empty() && all.front().second->runs.size() < steps) {
    for (const auto& [name, contender] : all) {
      forget_rooms(group);
      for (int i = 0; i <= kTurn && contender->runs.size() < steps; ++i) {
        const std::span<const Gradient> current = gradients.next();
        contender->prepare();
        barrier(group);
        const auto start = std::chrono::steady_clock::now();
        contender->step(current);
        if (i == 0) continue;
        contender->runs.push_back(milliseconds_since(start));
        progress.advance();
      }
    }
  }
}

nlohmann::json work_alone(Group& group, const Options& options) {
  if (options.workers_given && options.workers != group.size()) {
    throw Error(ErrorCode::invalid_argument, "bench exchange",
                fmt::format("--workers {}", options.workers),
                fmt::format("{} were started", group.size()), "leave --workers out");
  }
  int hosts = group.size();
  std::string host;
  const auto wanted_in_shares = [&](const std::string& name) {
    return options.wants(name) && in_shares(name);
  };
  if (std::any_of(contender_names().begin(), contender_names().end(), wanted_in_shares)) {
    hosts = exchange::find_topology(group, host).hosts;
    // On a single machine pairs of workers stand for hosts.
    if (hosts == 1 && group.size() > 1) {
      const int pair = group.size() % 2 == 0 ? 2 : 1;
      host = fmt::format("host {}", group.rank() / pair);
      hosts = group.size() / pair;
    }
  }
  nlohmann::json results = nlohmann::json::array();
  const std::vector<Layer> layers = layers_of(options.elements);
  Gradients gradients(layers, group.rank());
  Contenders contenders;
  for (const std::string& algorithm : contender_names()) {
    if (!options.wants(algorithm)) continue;
    std::unique_ptr<Contender> one;
    if (is_plain(algorithm)) {
      one = std::make_unique<Plain>(group, options, algorithm);
    } else {
      one = std::make_unique<Compressing>(group, options, host, parse_algorithm(algorithm), layers);
    }
    contenders.emplace_back(algorithm, std::move(one));
  }
  take_turns(group, options, gradients, contenders);
  for (const auto& [algorithm, contender] : contenders) {
    nlohmann::json mine = contender->result();
    mine["runs"] = contender->runs;
    const std::string text = mine.dump();
    std::vector<nlohmann::json> ranks;
    for (const auto& bytes : all_gather(group, std::as_bytes(std::span(text)), 1 << 26)) {
      ranks.push_back(nlohmann::json::parse(
          std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size())));
    }
    if (group.rank() == 0) results.push_back(combine(algorithm, group, options, hosts, ranks));
  }
  return results;
}

}  // namespace

const std::vector<std::string>& contender_names() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> names = names_of(algorithms());
    names.insert(names.end(), {kPlain, kNative});
    return names;
  }();
  return all;
}

CompressOptions settings_of(const Options& options) {
  CompressOptions settings;
  settings.schedule = Schedule(options.ratio);
  settings.values = parse_value_type(options.values);
  return settings;
}

nlohmann::json work(Group& group, const Options& options) {
  try {
    return work_alone(group, options);
  } catch (const Error& error) {
    group.fail(error);
    throw;
  } catch (const std::exception& error) {
    const Error wrapped(ErrorCode::invalid_argument, "bench exchange",
                        fmt::format("rank {}", group.rank()), error.what());
    group.fail(wrapped);
    throw Error(wrapped);
  }
}

}  // namespace dgc::bench::exchange_bench
