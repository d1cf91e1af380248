// One loop: ask the hub, compute what it leases, or evaluate. hub::Member says which, and keeps
// what has to survive; the task of the recipe computes, on this machine alone.
//
// A signal ends the loop after the message that is on its way: nothing is lost then. Where the hub
// does not answer any more, that is not waited for long: what is on the disk is enough to go on.
#include "train/hub_member.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <thread>

#include "base/units.h"
#include "dgc/error.h"
#include "hub/enrolment.h"
#include "hub/member.h"
#include "torch/inner_state.h"
#include "torch/parameters.h"
#include "train/hub_run.h"
#include "train/optimizer.h"
#include "train/run_folder.h"
#include "train/stopwatch.h"
#include "train/task.h"

namespace dgc::train {
namespace {

using Clock = std::chrono::steady_clock;
using hub::Todo;

/// For an answer to the last words of a member that leaves; and where the hub seems to be away.
constexpr auto kGoodBye = std::chrono::seconds(40);
constexpr auto kShortGoodBye = std::chrono::seconds(5);

struct Tensors {
  std::vector<torch::Tensor> tensors;
  std::vector<TensorSpec> specs;
  std::size_t elements = 0;

  void add(const std::string& name, const torch::Tensor& tensor) {
    tensors.push_back(tensor);
    specs.push_back(TensorSpec::of(name, tensor.sizes().vec()));
    elements += static_cast<std::size_t>(tensor.numel());
  }
};

Tensors parameters_of(const torch::nn::Module& model) {
  Tensors all;
  for (const auto& [name, tensor] : distinct_parameters(model)) all.add(name, tensor);
  return all;
}

/// Those that can be averaged: running statistics, but not how many batches there were.
Tensors buffers_of(const torch::nn::Module& model) {
  Tensors all;
  for (const auto& item : model.named_buffers()) {
    if (item.value().scalar_type() == torch::kFloat) all.add(item.key(), item.value());
  }
  return all;
}

class HubMember {
 public:
  HubMember(const JoinRequest& request, Console& console)
      : request_(request),
        console_(console),
        client_(request.place, {}),
        courier_(client_, [&console](const std::string& line) { console.say(line); }) {}

  JoinedRun run() {
    const auto facts = hub::enrol(client_, courier_, request_.token, request_.name, request_.state,
                                  [this] { return stops(); });
    if (!facts) return joined_;
    joined_.name = facts->name;
    console_.say(fmt::format("member '{}' of run {}, round {}", facts->name,
                             facts->run.substr(0, 8), facts->round));
    begin(*facts);
    while (member_->todo() != Todo::end) {
      if (stops()) leave();
      if (member_->todo() == Todo::ask) {
        if (!ask()) break;
      } else if (member_->todo() == Todo::evaluate) {
        evaluate();
      } else {
        compute();
      }
      if (const auto back = member_->hub_went_back()) {
        console_.say(
            fmt::format("the hub is at round {}, and this member was at {}: the hub was restored "
                        "from an older copy; its parameters are taken",
                        back->to, back->from));
      }
      if (const auto lost = member_->went_back()) {
        console_.say(
            fmt::format("back at message {}, as it was saved; what {} later messages with {} "
                        "examples kept back "
                        "is lost, and their examples are done again",
                        lost->to, lost->messages, lost->examples));
      }
    }
    joined_.finished = member_->finished();
    joined_.round = member_->round();
    joined_.parameters_hash = fmt::format("{:016x}", member_->replica().hash());
    return joined_;
  }

 private:
  bool stops() const { return request_.stop != nullptr && *request_.stop != 0; }

  bool has_waited() const {
    return Clock::now() - *leaving_since_ > (courier_.failing() ? kShortGoodBye : kGoodBye);
  }

  void begin(const hub::RunFacts& facts) {
    MemberRun run = member_run(facts.settings);
    if (run.own_model) {
      throw Error(ErrorCode::configuration_mismatch, "join", "the hub's run",
                  "has a model of its members' own", "join from PyTorch, with dgc.join()");
    }
    apply(run.settings, nlohmann::json::parse(request_.own_settings), "join");
    settings_ = run.settings;
    local_ = is_local(run.mode);
    if (settings_.threads > 0) torch::set_num_threads(static_cast<int>(settings_.threads));
    task_ = make_task(settings_, {});
    for (const std::string& fact : task_->facts()) console_.say(fact);
    // Members differ in what dropout leaves out.
    torch::manual_seed(static_cast<std::uint64_t>(settings_.seed) * 1'000'003u +
                       XXH64(facts.name.data(), facts.name.size(), 0) % 1'000'003u);
    parameters_ = parameters_of(task_->model());
    buffers_ = buffers_of(task_->model());
    member_.emplace(parameters_.specs, buffers_.specs,
                    hub::MemberOptions{.terms = facts.terms,
                                       .run = facts.run,
                                       .folder = hub::residual_folder(request_.state, facts.run),
                                       .threads = static_cast<int>(settings_.threads)});
    private_data_ = facts.private_data;
    const std::string words = task_->vocabulary();
    member_->set_data(task_->positions(),
                      fmt::format("{} examples, vocabulary {:016x}", task_->positions(),
                                  XXH64(words.data(), words.size(), 0)));
    // The first member of all gives its parameters; others take the run's in their place.
    copy_out(parameters_, member_->replica().parameters());
    copy_buffers_out(member_->replica().buffers());
    if (local_) inner_ = make_inner(settings_, task_->model());
    member_->keep_with_residual([this] { return own_state(); });
    if (local_) before_.resize(parameters_.elements);
  }

  void leave() {
    if (leaving_since_) return;
    leaving_since_ = Clock::now();
    console_.say(member_->is_outstanding() ? "leaves when the hub has the last message"
                                           : "leaves now");
    member_->leave();
  }

  /// False where it gives up.
  bool ask() {
    const hub::Ask ask = member_->next_request(round_trip_);
    const hub::Bytes answer = courier_.carry(ask, [&] {
      if (!stops()) return false;
      leave();
      // A message is worth waiting for; the next lease is not.
      if (ask.waits && !member_->is_outstanding()) return true;
      return has_waited();
    });
    if (answer.empty() && !has_waited()) return true;
    if (answer.empty()) {
      joined_.told = false;
      console_.say("the hub does not answer: what is not sent stays in " + request_.state.string() +
                   " and goes on from there");
      return false;
    }
    joined_.bytes_up += ask.body.size();
    joined_.bytes_down += answer.size();
    const bool was_outstanding = member_->is_outstanding();
    const bool was_finished = member_->finished();
    member_->take(answer);
    if (ask.waits && !ask.body.empty())
      round_trip_ = std::max(0.0, courier_.seconds() - member_->held());
    if (was_outstanding && !member_->is_outstanding()) settled();
    if (!was_finished && member_->finished()) console_.say("the run is finished");
    take_back_own_state();
    return true;
  }

  void settled() {
    if (member_->last_outcome() == hub::Outcome::taken_back) {
      console_.say(
          fmt::format("message {} came too late and is kept for a later one", member_->sequence()));
    }
    console_.progress(fmt::format(
        "round {}  loss {:.4f}  {} examples in {:.2f} s  ratio {:.3g} %  sent {}, round trip "
        "{:.0f} "
        "ms  {} up, {} down so far",
        member_->round(), joined_.loss, last_examples_, last_seconds_, 100.0 * member_->ratio(),
        bytes_text(static_cast<double>(member_->message_bytes())), 1e3 * round_trip_,
        bytes_text(static_cast<double>(joined_.bytes_up)),
        bytes_text(static_cast<double>(joined_.bytes_down))));
  }

  // Between the replica and the model.

  static void copy_out(const Tensors& from, const std::vector<std::span<float>>& to) {
    for (std::size_t t = 0; t < to.size(); ++t) {
      const torch::Tensor values = from.tensors[t].detach().contiguous();
      std::copy_n(values.data_ptr<float>(), to[t].size(), to[t].begin());
    }
  }
  void copy_buffers_out(std::vector<float>& to) const {
    to.resize(buffers_.elements);
    float* at = to.data();
    for (const torch::Tensor& tensor : buffers_.tensors) {
      const torch::Tensor values = tensor.detach().contiguous();
      at = std::copy_n(values.data_ptr<float>(), values.numel(), at);
    }
  }
  static void copy_in(const float* from, const torch::Tensor& to) {
    to.detach().copy_(torch::from_blob(const_cast<float*>(from), to.sizes()));
  }
  void show_replica(bool with_buffers) {
    const torch::NoGradGuard no_grad;
    const auto values = member_->replica().parameters();
    for (std::size_t t = 0; t < values.size(); ++t) {
      copy_in(values[t].data(), parameters_.tensors[t]);
    }
    if (!with_buffers) return;
    const float* at = member_->replica().buffers().data();
    for (const torch::Tensor& tensor : buffers_.tensors) {
      copy_in(at, tensor);
      at += tensor.numel();
    }
  }

  // What this member does.

  /// Where data are private, the hub says only how many.
  hub::Lease work() {
    hub::Lease lease = member_->lease();
    if (!private_data_) return lease;
    if (position_ >= task_->positions()) {
      position_ = 0;
      ++epoch_;
    }
    lease.epoch = epoch_;
    lease.first = position_;
    lease.count = std::min(lease.count, task_->positions() - position_);
    position_ += lease.count;
    return lease;
  }

  void compute() {
    const hub::Lease lease = work();
    Stopwatch clock;
    // Running statistics are this member's own between two evaluations.
    show_replica(/*with_buffers=*/!has_buffers_);
    has_buffers_ = true;
    if (lease.epoch != after_.epoch || lease.first != after_.first) task_->begin_epoch();
    after_ = {.epoch = lease.epoch, .first = lease.first + lease.count};
    task_->model().train();
    const std::optional<double> loss =
        local_ ? local_steps(lease) : gradient_of({lease.epoch, lease.first, lease.count});
    if (!loss) return;  // leaves: others do it
    hub::Contribution contribution{.gradients = gradients(),
                                   .examples = static_cast<std::uint64_t>(lease.count),
                                   .loss = *loss};
    std::vector<float> statistics;
    if (member_->wants_buffers()) {
      copy_buffers_out(statistics);
      contribution.buffers = statistics;
    }
    contribution.seconds = clock.lap();
    member_->contribute(contribution);
    joined_.loss = *loss;
    joined_.examples += contribution.examples;
    ++joined_.messages;
    last_examples_ = contribution.examples;
    last_seconds_ = contribution.seconds;
  }

  /// Mean loss; gradients are in the parameters.
  double gradient_of(const Draw& draw) {
    for (torch::Tensor& parameter : parameters_.tensors) parameter.mutable_grad().reset();
    const Batch batch = task_->batch(draw);
    for (const std::string& text : task_->problems().take()) {
      if (skipped_.insert(text).second) console_.say("left out: " + text);
    }
    if (batch.examples == 0) {
      throw Error(ErrorCode::io, "join", "data", "none of the examples could be read",
                  "are the data still there?");
    }
    torch::Tensor loss = task_->loss(batch);
    loss.backward();
    return loss.item<double>();
  }

  /// Nothing where a signal came: an unfinished lease is given to others.
  std::optional<double> local_steps(const hub::Lease& lease) {
    copy_out(parameters_, spans_of(before_));
    for (auto& group : inner_->param_groups()) group.options().set_lr(member_->inner_lr());
    const double clip = settings_.clipping ? settings_.clip_norm : 0.0;
    double sum = 0.0;
    const std::int64_t step = task_->positions_of_step();
    for (std::int64_t at = 0; at < lease.count; at += step) {
      if (stops()) return {};
      const std::int64_t count = std::min(step, lease.count - at);
      sum += gradient_of({lease.epoch, lease.first + at, count}) * static_cast<double>(count);
      if (clip > 0.0) torch::nn::utils::clip_grad_norm_(parameters_.tensors, clip);
      inner_->step();
    }
    return sum / static_cast<double>(lease.count);
  }

  std::vector<std::span<float>> spans_of(std::vector<float>& values) const {
    std::vector<std::span<float>> spans;
    std::size_t at = 0;
    for (const torch::Tensor& tensor : parameters_.tensors) {
      const auto size = static_cast<std::size_t>(tensor.numel());
      spans.push_back(std::span(values).subspan(at, size));
      at += size;
    }
    return spans;
  }

  /// Of local steps: what they have changed.
  std::vector<Gradient> gradients() {
    std::vector<Gradient> all;
    kept_.clear();
    if (local_) {
      const auto before = spans_of(before_);
      for (std::size_t t = 0; t < before.size(); ++t) {
        const torch::Tensor now = parameters_.tensors[t].detach().contiguous();
        const float* values = now.data_ptr<float>();
        for (std::size_t i = 0; i < before[t].size(); ++i) before[t][i] -= values[i];
        all.push_back({t, before[t]});
      }
      return all;
    }
    for (std::size_t t = 0; t < parameters_.tensors.size(); ++t) {
      const torch::Tensor& gradient = parameters_.tensors[t].grad();
      if (!gradient.defined()) continue;
      kept_.push_back(sgd::as_contiguous_float(gradient));
      all.push_back({t, std::span<const float>(kept_.back().data_ptr<float>(),
                                               static_cast<std::size_t>(kept_.back().numel()))});
    }
    return all;
  }

  void evaluate() {
    show_replica(/*with_buffers=*/true);
    const Scores scores = task_->scores(task_->evaluate(Split::valid));
    auto metrics = scores.metrics;
    // What counts at the end is how good it is on what nobody has looked at.
    if (member_->finished() && task_->has_test()) {
      const Scores test = task_->scores(task_->evaluate(Split::test));
      for (const auto& [name, value] : test.metrics) metrics.emplace_back("test " + name, value);
    }
    console_.say(fmt::format("round {}: loss {:.4f}, {} {:.2f}", member_->round(), scores.loss,
                             metrics.front().first, metrics.front().second));
    member_->evaluated(scores.loss, metrics);
  }

  // What is kept with the residual: the inner optimizer, and the place in private data.

  hub::Bytes own_state() {
    hub::Bytes inner;
    if (inner_) {
      const torch::Tensor bytes = sgd::inner_state(*inner_);
      const auto* const data = reinterpret_cast<const std::byte*>(bytes.data_ptr());
      inner.assign(data, data + bytes.nbytes());
    }
    const std::span<const std::byte> blobs[] = {inner};
    return hub::write_packet({{"epoch", epoch_}, {"position", position_}}, blobs);
  }
  void take_back_own_state() {
    const auto saved = member_->take_saved_extra();
    if (!saved) return;
    const hub::Packet packet = hub::read_packet(*saved);
    epoch_ = hub::whole_number(packet.head, "epoch");
    position_ = static_cast<std::int64_t>(hub::whole_number(packet.head, "position"));
    if (!inner_) return;
    const auto bytes = packet.blob(0);
    const torch::Tensor state =
        torch::from_blob(const_cast<std::byte*>(bytes.data()),
                         {static_cast<std::int64_t>(bytes.size())}, torch::kByte)
            .clone();
    sgd::InnerChange change(*inner_, state, request_.state.string());
    change.keep();
  }

  const JoinRequest& request_;
  Console& console_;
  hub::Client client_;
  hub::Courier courier_;
  JoinedRun joined_;
  Settings settings_;
  bool local_ = false, private_data_ = false, has_buffers_ = false;
  std::unique_ptr<Task> task_;
  std::unique_ptr<torch::optim::Optimizer> inner_;
  Tensors parameters_, buffers_;
  std::optional<hub::Member> member_;
  std::vector<float> before_;        // local steps
  std::vector<torch::Tensor> kept_;  // gradients that contribute() reads
  std::set<std::string> skipped_;    // files that cannot be read, said once
  hub::Lease after_;                 // where the last lease ended
  std::uint64_t epoch_ = 0;          // in private data
  std::int64_t position_ = 0;
  std::uint64_t last_examples_ = 0;
  double last_seconds_ = 0.0, round_trip_ = 0.0;
  std::optional<Clock::time_point> leaving_since_;
};

}  // namespace

JoinedRun join_hub(const JoinRequest& request, Console& console) {
  std::filesystem::create_directories(request.state);
  const RunLock lock(request.state, "join", "is in use by another member",
                     "give each on a machine a --name or --state of its own");
  try {
    return HubMember(request, console).run();
  } catch (const c10::Error& error) {
    throw as_error(std::runtime_error(error.what_without_backtrace()));
  }
}

}  // namespace dgc::train
