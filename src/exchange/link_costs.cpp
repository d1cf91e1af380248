// Two kinds of probes.
//
// The link: rounds of swap() with room made ahead, as steps make them. Empty messages give the
// delay. Then messages grow fourfold, until larger ones would take kLongRound or be more than
// kMostBytes: the fastest round of the last size gives the bandwidth. Every message says whether
// its sender has seen enough, so that all ranks stop after the same round.
//
// The work: a compressor on a tensor of random numbers, at two ratios. The difference is what
// entries cost, the rest is for elements. CPU time is taken, the least of several runs, because
// others may use the cores while this measures. Workers of one machine that have to take turns on
// its cores take that much longer.
#include "exchange/link_costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <ctime>
#include <functional>
#include <limits>
#include <thread>

#include "base/quantity.h"
#include "compress/internals.h"
#include "dgc/collectives.h"
#include "dgc/wire.h"
#include "wire/values.h"

namespace dgc {

std::string costs_text(const Costs& costs) {
  return fmt::format(
      "{} link {}; {} an entry to encode, {} to add, {} to place densely; {} an element to select "
      "from, {} to send densely",
      costs.measured ? "measured" : "assumed", link_text(costs.link), duration_text(costs.encode),
      duration_text(costs.entry), duration_text(costs.place), duration_text(costs.select),
      duration_text(costs.slice));
}

namespace exchange {
namespace {

constexpr double kLongRound = 0.1;  // seconds
constexpr double kEnough = 0.8;     // seconds for the link, nearly all rounds together
// Of a rank in a round, and no more than the model is long: what fits into a cache moves faster.
constexpr std::uint64_t kMostBytes = std::uint64_t{32} << 20;
constexpr int kRounds = 7;  // with empty messages; the news of room for the first two is late

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double middle(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[(values.size() - 1) / 2];
}

/// A round of `bytes` to each, with room made for the next two. `stop`: a rank has seen enough.
struct Round {
  double seconds;
  bool stop;
};
Round round_of(Group& group, std::uint64_t bytes, std::span<const std::uint64_t> next,
               bool enough) {
  std::vector<std::byte> mine(bytes + 1);
  mine[0] = std::byte{enough};
  std::vector<std::uint64_t> bounds;
  for (const std::uint64_t b : next) bounds.push_back(b + 1);
  std::vector<Parcel> all;
  const double took = seconds_of([&] { all = group.swap(mine, mine.size(), bounds); });
  bool stop = false;
  for (const Parcel& parcel : all) stop |= !parcel.bytes.empty() && parcel.bytes[0] != std::byte{0};
  return {took, stop};
}

/// Of some rounds, that with the least time, which is that of its slowest rank: a rank that begins
/// late finds messages there already, and one that begins early waits for the others.
double fastest_round(Group& group, const std::vector<double>& mine) {
  std::vector<double> slowest = mine;
  const std::size_t bytes = mine.size() * sizeof(double);
  for (const auto& theirs : all_gather(group, std::as_bytes(std::span(mine)), bytes)) {
    for (std::size_t i = 0; i < slowest.size() && theirs.size() == bytes; ++i) {
      double seconds = 0.0;
      std::memcpy(&seconds, theirs.data() + i * sizeof seconds, sizeof seconds);
      slowest[i] = std::max(slowest[i], seconds);
    }
  }
  return *std::min_element(slowest.begin(), slowest.end());
}

Link measure_link(Group& group, std::uint64_t elements) {
  const auto peers = static_cast<std::uint64_t>(group.size() - 1);
  constexpr std::uint64_t kLeast = std::uint64_t{1} << 20;
  const std::uint64_t most =
      std::clamp(4 * std::min(elements, kMostBytes), kLeast, kMostBytes) / peers;
  const std::uint64_t first = std::min<std::uint64_t>(4096, most);
  double elapsed = 0.0;
  std::vector<double> rounds;
  const auto timed = [&](std::uint64_t bytes, const std::array<std::uint64_t, 2>& next,
                         bool enough) {
    const Round round = round_of(group, bytes, next, enough);
    elapsed += round.seconds;
    rounds.push_back(round.seconds);
    return round.stop;
  };
  for (int i = 0; i < kRounds; ++i) {
    const bool stop = timed(0, {first, first}, elapsed > kEnough / 8);
    if (i < 2) rounds.clear();
    if (i > 3 && stop) break;
  }
  const double delay = fastest_round(group, rounds);

  std::uint64_t bytes = first;
  for (;;) {
    const std::uint64_t larger = std::min(4 * bytes, most);
    rounds.clear();
    timed(bytes, {bytes, larger}, false);
    const bool enough =
        4.0 * (rounds.back() - delay) > kLongRound || elapsed > kEnough || bytes == most;
    if (timed(bytes, {larger, larger}, enough)) break;
    bytes = larger;
  }
  for (int i = 0; i < 2; ++i) {
    if (timed(bytes, {bytes, bytes}, elapsed > kEnough)) break;
  }
  const double took = fastest_round(group, rounds);
  // Where the delay is most of it, the difference would be noise.
  const double moving = std::max(took - delay, took / 16);
  return {.bytes_per_second = static_cast<double>(bytes * peers) / moving,
          .delay = std::chrono::duration<double>(delay)};
}

// Steps of a probe. Thresholds follow the residuals after some, and the least of many counts.
constexpr int kProbes = 16;
// Elements by which one probe's gradient is shifted from the next one's.
constexpr std::size_t kShift = 1024;

/// One tensor, compressed again and again at one ratio. Each time its gradient is another window of
/// `numbers`: one that repeats itself is selected from in another way than those of a training.
class Coder {
 public:
  Coder(const CompressOptions& options, std::span<const float> numbers, std::size_t elements,
        double ratio)
      : model_({{"probe", {static_cast<std::int64_t>(elements)}}}),
        numbers_(numbers),
        entries_(static_cast<double>(entries_at(ratio, elements))),
        state_(model_, 0, 1),
        compressor_(state_, at(options, ratio)),
        message_(compressor_.bound()) {}

  double entries() const { return entries_; }
  void compress() {
    message_.resize(message_.capacity());
    message_.resize(compressor_.compress(next(), message_));
    compressor_.commit();
  }
  /// Into memory that is new, as in a step.
  std::vector<float> lay_out(ValueType transport) {
    std::vector<float> values(model_[0].elements());
    compress::Internals::lay_out(compressor_, next(), values, transport, {});
    compressor_.commit();
    return values;
  }
  void add_to(std::span<float> target) const {
    const std::vector<std::span<float>> targets = {target};
    decode_add(CheckedMessage(message_), targets, 1.0f);
  }

 private:
  static CompressOptions at(CompressOptions options, double ratio) {
    options.schedule = Schedule(ratio);
    options.clip_norm = 0.0;
    return options;
  }
  std::span<const Gradient> next() {
    gradient_[0].values = numbers_.subspan(turn_++ % kProbes * kShift, model_[0].elements());
    return gradient_;
  }

  std::vector<TensorSpec> model_;
  std::span<const float> numbers_;
  std::vector<Gradient> gradient_{{0, {}}};
  std::size_t turn_ = 0;
  double entries_;
  State state_;
  Compressor compressor_;
  std::vector<std::byte> message_;
};

std::vector<float> random_numbers(std::size_t count) {
  std::vector<float> values(count);
  std::uint64_t random = 0x9E3779B97F4A7C15u;
  for (float& x : values) {
    float sum = 0.0f;
    for (int i = 0; i < 4; ++i) {
      random = random * 6364136223846793005u + 1442695040888963407u;
      sum += static_cast<float>(random >> 40) * 0x1p-24f - 0.5f;
    }
    x = sum;
  }
  return values;
}

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// CPU time of this thread, the least of some runs; the first ones meet cold caches.
double least(const std::function<void()>& work) {
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kProbes; ++i) {
    const double start = cpu_seconds();
    work();
    least = std::min(least, cpu_seconds() - start);
  }
  return least;
}

/// How many workers a core has to serve here, at least 1. A collective call.
double turns_on_cores(Group& group) {
  const std::string mine = group.host();
  int here = 0;
  for (const auto& host : all_gather(group, std::as_bytes(std::span(mine)), 4096)) {
    here += std::equal(host.begin(), host.end(), std::as_bytes(std::span(mine)).begin(),
                       std::as_bytes(std::span(mine)).end());
  }
  const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  return std::max(1.0, static_cast<double>(here) / cores);
}

/// What a dense exchange does with values beside laying them out and moving them.
void sum_up(std::span<const float> values, ValueType transport, std::span<float> target) {
  std::vector<float> sum(values.begin(), values.end());
  if (transport != ValueType::fp32) {
    std::vector<std::byte> bytes(wire::value_bytes(transport, values.size()));
    std::vector<float> decoded(values.size());
    for (int way = 0; way < 2; ++way) {
      wire::encode_values(transport, values, bytes.data(), decoded.data());
      for (std::size_t i = 0; i < values.size(); ++i) sum[i] += values[i] - decoded[i];
    }
  }
  for (std::size_t i = 0; i < values.size(); ++i) sum[i] += values[i];
  const auto all = std::as_bytes(std::span(sum));
  wire::ValueReader(ValueType::fp32, all.data(), sum.size()).validate();
  for (std::size_t i = 0; i < values.size(); ++i) target[i] += 0.1f * sum[i];
}

void measure_work(const Probe& probe, double turns, Costs& costs) {
  constexpr std::uint64_t kLeast = 1 << 16;
  constexpr std::uint64_t kMost = 1 << 21;
  const auto elements = static_cast<std::size_t>(std::clamp(probe.elements, kLeast, kMost));
  const std::vector<float> numbers = random_numbers(elements + kProbes * kShift);
  const auto n = static_cast<double>(elements);
  std::vector<float> target(elements);
  Coder few(probe.compress, numbers, elements, 1.0 / 1024);
  Coder many(probe.compress, numbers, elements, 1.0 / 16);
  const double more = many.entries() - few.entries();

  const double compress_few = least([&] { few.compress(); });
  const double compress_many = least([&] { many.compress(); });
  costs.encode = std::max(0.0, (compress_many - compress_few) / more);
  costs.select = std::max(0.0, compress_few - few.entries() * costs.encode) / n;
  costs.entry = least([&] { many.add_to(target); }) / many.entries();

  std::vector<float> values;
  const double lay_few = least([&] { values = few.lay_out(probe.dense_transport); });
  const double lay_many = least([&] { values = many.lay_out(probe.dense_transport); });
  costs.place = std::max(0.0, (lay_many - lay_few) / more);
  const double sum = least([&] { sum_up(values, probe.dense_transport, target); });
  const double dense =
      sum + std::max(0.0, lay_few - few.entries() * costs.place - n * costs.select);
  costs.slice = dense / n;
  if (probe.dense_transport != ValueType::fp32) costs.slice -= costs.dense16 - costs.dense;
  for (double* cost : {&costs.select, &costs.encode, &costs.entry, &costs.place, &costs.slice,
                       &costs.dense, &costs.dense16}) {
    *cost *= turns;
  }
}

}  // namespace

Costs measure_costs(Group& group, const Probe& probe) {
  Costs costs;
  if (group.size() == 1) return costs;
  costs.link = measure_link(group, probe.elements);
  measure_work(probe, turns_on_cores(group), costs);
  double delay = costs.link.delay.count();
  const std::array members = {&delay,        &costs.link.bytes_per_second,
                              &costs.select, &costs.encode,
                              &costs.entry,  &costs.place,
                              &costs.slice,  &costs.dense,
                              &costs.dense16};
  std::array<double, members.size()> mine{};
  for (std::size_t i = 0; i < mine.size(); ++i) mine[i] = *members[i];
  const auto all = all_gather(group, std::as_bytes(std::span(mine)), sizeof mine);
  std::vector<std::vector<double>> columns(mine.size());
  for (const auto& bytes : all) {
    std::array<double, members.size()> theirs{};
    if (bytes.size() == sizeof theirs) std::memcpy(theirs.data(), bytes.data(), sizeof theirs);
    for (std::size_t i = 0; i < theirs.size(); ++i) columns[i].push_back(theirs[i]);
  }
  for (std::size_t i = 0; i < mine.size(); ++i) *members[i] = middle(columns[i]);
  costs.link.delay = std::chrono::duration<double>(delay);
  costs.byte = costs.message = costs.round = 0.0;  // a part of what the rounds took
  costs.measured = true;
  return costs;
}

}  // namespace exchange
}  // namespace dgc
