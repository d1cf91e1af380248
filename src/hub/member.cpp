#include "hub/member.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <random>

#include "base/file.h"
#include "dgc/error.h"
#include "dgc/version.h"

namespace dgc::hub {
namespace {

namespace fs = std::filesystem;

/// "residual-000000012.state": 12; nothing for other names.
std::optional<std::uint64_t> number_in(const std::string& name, const std::string& begin,
                                       const std::string& end) {
  if (name.size() <= begin.size() + end.size() || !name.starts_with(begin) ||
      !name.ends_with(end)) {
    return std::nullopt;
  }
  const char* const first = name.data() + begin.size();
  const char* const last = name.data() + name.size() - end.size();
  std::uint64_t number = 0;
  const auto [stop, error] = std::from_chars(first, last, number);
  if (error != std::errc{} || stop != last) return std::nullopt;
  return number;
}

fs::path log_file(const fs::path& folder, std::uint64_t saved) {
  return folder / fmt::format("sent-{:09}.log", saved);
}

Outcome outcome_in(const nlohmann::json& head) {
  const std::uint64_t number = whole_number(head, "outcome");
  if (number > static_cast<std::uint64_t>(Outcome::taken_back)) {
    throw Error(ErrorCode::bad_state, "join", "outcome", "is unknown");
  }
  return static_cast<Outcome>(number);
}

}  // namespace

Member::Member(std::vector<TensorSpec> model, std::vector<TensorSpec> buffers,
               MemberOptions options)
    : options_(std::move(options)),
      replica_(model, std::move(buffers), options_.terms),
      state_(std::move(model), 0, 1, options_.terms.member_options().needs_velocity()) {
  std::random_device random;
  process_ = fmt::format("{:08x}{:08x}{:08x}", random(), random(), random());
  fs::create_directories(options_.folder);
  const fs::path note = options_.folder / "run";
  if (fs::exists(note) && fs::file_size(note) > 0) {
    const MappedFile file(note);
    const auto bytes = file.contents();
    const std::string known(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (known != options_.run) {
      throw Error(ErrorCode::state_mismatch, "join", options_.folder.string(),
                  fmt::format("is of run {}, and the hub has run {}", known, options_.run),
                  "use another --state folder");
    }
  } else {
    AtomicFile file(note);
    file.write(std::as_bytes(std::span(options_.run)));
    file.commit();
  }
  find_saved();
}

Member::~Member() = default;

fs::path Member::residual_file(std::uint64_t sequence) const {
  return options_.folder / fmt::format("residual-{:09}.state", sequence);
}
fs::path Member::extra_file(std::uint64_t sequence) const {
  return options_.folder / fmt::format("extra-{:09}.bin", sequence);
}

void Member::find_saved() {
  for (const auto& entry : fs::directory_iterator(options_.folder)) {
    const std::string name = entry.path().filename().string();
    // A process that was killed while it saved leaves as much as a residual behind (AtomicFile).
    if (name.find(".tmp") != name.npos) {
      std::error_code error;
      fs::remove(entry.path(), error);
      continue;
    }
    if (const auto number = number_in(name, "residual-", ".state")) saved_.push_back(*number);
    if (const auto number = number_in(name, "sent-", ".log")) {
      for (const auto& sent : SentLog::read(entry.path())) {
        sequence_ = std::max(sequence_, sent.sequence);
      }
    }
  }
  std::sort(saved_.begin(), saved_.end());
  if (!saved_.empty()) sequence_ = std::max(sequence_, saved_.back());
}

void Member::make_compressor() {
  CompressOptions compress = options_.terms.member_options();
  compress.threads = options_.threads;
  compressor_.reset();
  compressor_ = std::make_unique<Compressor>(state_, compress);
}

void Member::set_data(std::int64_t positions, const std::string& data, bool evaluates) {
  positions_ = positions;
  data_ = data;
  can_evaluate_ = evaluates;
}

Todo Member::todo() const noexcept {
  if (left_) return Todo::end;
  const bool synchronous =
      !session_.empty() && !needs_parameters_ && !needs_snapshot_ && round() >= hub_round_ && told_;
  if (!synchronous || outstanding_ || evaluation_) return Todo::ask;
  if (evaluates_ && !leaves_) return Todo::evaluate;
  if (finished_ || leaves_) return Todo::ask;  // says good-bye
  return lease_.count > 0 ? Todo::compute : Todo::ask;
}

nlohmann::json Member::about_now(double rtt) const {
  return {{"session", session_},
          {"sequence", sequence_},
          {"have", round()},
          {"saved", saved_.empty() ? 0 : saved_.back()},
          {"rtt", rtt}};
}

Ask Member::next_request(double rtt) {
  if (session_.empty()) {
    asked_ = Asked::join;
    return {"POST", "/v1/join", join_request()};
  }
  if (leaves_ && !outstanding_) return good_bye(rtt);
  if (needs_parameters_) {
    asked_ = Asked::initial;
    const Bytes snapshot = replica_.snapshot();
    const std::span<const std::byte> blobs[] = {snapshot};
    return {"POST", "/v1/initial", write_packet({{"session", session_}}, blobs)};
  }
  if (needs_snapshot_) {
    asked_ = Asked::snapshot;
    return {"GET", "/v1/snapshot", {}, true};
  }
  if (round() < hub_round_ && !outstanding_) {
    asked_ = Asked::commits;
    return {"GET", fmt::format("/v1/commits?after={}", round()), {}};
  }
  if (evaluation_) {
    asked_ = Asked::evaluation;
    return {"POST", "/v1/evaluation", *evaluation_};
  }
  if (!outstanding_ && told_ && finished_) return good_bye(rtt);
  asked_ = Asked::round;
  if (outstanding_ && !in_round_) return {"POST", "/v1/round", round_request(rtt), true};
  return {"POST", "/v1/wait", write_packet(about_now(rtt)), true};
}

Ask Member::good_bye(double rtt) {
  asked_ = Asked::leave;
  save();
  return {"POST", "/v1/leave", write_packet(about_now(rtt))};
}

void Member::take(std::span<const std::byte> answer) {
  const Packet packet = read_packet(answer);
  if (const auto error = error_in(packet)) {
    const ErrorCode code = error->code();
    if (code == ErrorCode::wrong_order && asked_ == Asked::leave) left_ = true;
    // The hub was started again, or has given this member up: join again.
    if (code == ErrorCode::wrong_order && asked_ != Asked::join) {
      session_.clear();
      told_ = false;
      in_round_ = false;
      return;
    }
    throw *error;
  }
  switch (asked_) {
    case Asked::join:
      return take_join(packet);
    case Asked::initial:
      needs_parameters_ = false;
      // Another member was first.
      needs_snapshot_ = !flag(packet.head, "taken");
      return;
    case Asked::snapshot:
      replica_.load(answer);
      needs_snapshot_ = false;
      return;
    case Asked::commits:
      return take_commits(packet);
    case Asked::round:
      return take_reply(packet);
    case Asked::evaluation:
      evaluation_.reset();
      return;
    case Asked::leave:
      left_ = true;
      return;
  }
}

Bytes Member::join_request() const {
  return write_packet({{"protocol", kProtocol},
                       {"version", DGC_VERSION},
                       {"positions", positions_},
                       {"data", data_},
                       {"evaluates", can_evaluate_},
                       {"model", to_json(replica_.model())},
                       {"buffers", to_json(replica_.buffer_specs())},
                       {"sequence", sequence_},
                       {"alive", alive_},
                       {"process", process_},
                       {"saved", saved_}});
}

void Member::take_join(const Packet& packet) {
  const nlohmann::json& head = packet.head;
  const std::uint64_t resume_from = whole_number(head, "resume_from");
  const std::uint64_t last = whole_number(head, "last_sequence");
  const Outcome outcome = outcome_in(head);
  session_ = text(head, "session");
  hub_round_ = whole_number(head, "round");
  // A replica that begins has the parameters of this process, which are the run's only if the hub
  // takes them.
  const bool has_own = !alive_ || needs_parameters_;
  needs_parameters_ = flag(head, "needs_parameters");
  const bool ahead = !has_own && round() > hub_round_;
  if ((has_own || ahead) && !needs_parameters_) needs_snapshot_ = true;
  finished_ = flag(head, "finished");
  lease_ = {};
  told_ = false;
  in_round_ = false;
  evaluates_ = false;
  evaluation_.reset();
  if (!alive_ || resume_from != sequence_) go_back(resume_from, sequence_, outcome);
  alive_ = true;
  if (ahead) {
    hub_went_back_ = {.from = round(), .to = hub_round_};
    // It was computed at a round that has not happened.
    if (outstanding_) settle(Outcome::taken_back);
  }
  // What the hub has seen before this one's disk was lost, say, is not used again.
  if (!outstanding_) sequence_ = std::max(sequence_, last);
}

void Member::go_back(std::uint64_t to, std::uint64_t last, Outcome of_last) {
  if (to != 0 && std::find(saved_.begin(), saved_.end(), to) == saved_.end()) {
    throw Error(ErrorCode::state_mismatch, "join", options_.folder.string(),
                fmt::format("has no residual saved at message {}, from which the hub goes on", to));
  }
  compressor_.reset();
  outstanding_ = false;
  log_.reset();
  if (to != 0) {
    state_.load(residual_file(to));
    if (fs::exists(extra_file(to)) && fs::file_size(extra_file(to)) > 0) {
      const MappedFile file(extra_file(to));
      saved_extra_.emplace(file.contents().begin(), file.contents().end());
    }
  } else {
    for (std::size_t t = 0; t < state_.tensors().size(); ++t) {
      std::ranges::fill(state_.residual(t), 0.0f);
      std::ranges::fill(state_.velocity(t), 0.0f);
    }
  }
  // What has arrived since then is not in the residual any more, in so far as the increments of the
  // same time were: those are lost, and others do their examples again.
  WentBack lost{.to = to};
  std::vector<std::span<float>> residuals;
  for (std::size_t t = 0; t < state_.tensors().size(); ++t) residuals.push_back(state_.residual(t));
  std::vector<fs::path> logs;
  for (const auto& entry : fs::directory_iterator(options_.folder)) {
    if (number_in(entry.path().filename().string(), "sent-", ".log")) logs.push_back(entry.path());
  }
  std::sort(logs.begin(), logs.end());
  std::vector<SentLog::Entry> entries;
  for (const fs::path& log : logs) {
    for (SentLog::Entry& entry : SentLog::read(log)) {
      if (entry.sequence <= to) continue;
      if (entry.sequence == last) entry.outcome = of_last;
      if (!entry.named) {
        ++lost.messages;
        lost.examples += entry.examples;
      }
      entries.push_back(std::move(entry));
      if (entries.back().outcome != Outcome::committed) continue;
      const CheckedMessage message(entries.back().message);
      decode_add(message, residuals, -1.0f);
      if (!state_.has_velocity() || !options_.terms.masking) continue;
      for (const Entries& sent : decode_entries(message, kMaxElements)) {
        if (sent.indices.size() == sent.elements) continue;  // whole: nothing is masked
        for (const std::uint32_t i : sent.indices) state_.velocity(sent.tensor)[i] = 0.0f;
      }
    }
  }
  // The hub may send it to `to` once more, if it is killed before the hub has heard of it again.
  const fs::path kept = log_file(options_.folder, to);
  if (to != sequence_) SentLog::write(kept, entries);
  for (const std::uint64_t saved : saved_) {
    if (saved > to) forget_before(saved);  // no more than files of what is void now
  }
  make_compressor();
  for (const fs::path& log : logs) {
    std::error_code error;
    // That of `to` stays with it, until the hub knows of the new one.
    if (log != kept || to == sequence_) fs::remove(log, error);
  }
  std::erase_if(saved_, [&](std::uint64_t saved) { return saved > to; });
  save();
  if (lost.messages == 0) return;
  went_back_ = lost;
  SentLog(kept).named(sequence_);
}

void Member::forget_before(std::uint64_t sequence) {
  std::error_code error;
  fs::remove(residual_file(sequence), error);
  fs::remove(extra_file(sequence), error);
  fs::remove(log_file(options_.folder, sequence), error);
}

void Member::save() {
  if (outstanding_) {
    throw Error(ErrorCode::wrong_order, "join", "save", "a message is on its way");
  }
  if (!saved_.empty() && saved_.back() == sequence_ && log_) return;
  if (saved_extra_ || extra_) {
    AtomicFile file(extra_file(sequence_));
    file.write(saved_extra_ ? *saved_extra_ : extra_());
    file.commit();
  }
  // The hub remembers the last outcome alone: those before have to be here when the next log
  // begins.
  if (log_) log_->flush();
  state_.set_step(sequence_);
  state_.save(residual_file(sequence_));
  if (saved_.empty() || saved_.back() != sequence_) saved_.push_back(sequence_);
  log_ = std::make_unique<SentLog>(log_file(options_.folder, sequence_));
}

void Member::take_commits(const Packet& packet) {
  needs_snapshot_ = flag(packet.head, "snapshot");
  hub_round_ = whole_number(packet.head, "round");
  if (!needs_snapshot_) apply_commits(packet);
}

void Member::apply_commits(const Packet& packet) {
  for (const auto& blob : packet.blobs) {
    const Commit commit = commit_from(blob);
    if (commit.round <= replica_.round()) continue;  // sent twice
    replica_.apply(commit);
    ratio_ = commit.ratio;
  }
}

void Member::contribute(const Contribution& contribution) {
  if (outstanding_ || !compressor_) {
    throw Error(ErrorCode::wrong_order, "join", "contribute",
                outstanding_ ? "the last message has no outcome yet" : "join first");
  }
  double scale = static_cast<double>(contribution.examples);
  const double clip = options_.terms.clip_norm;
  const double norm = compressor_->norm(contribution.gradients);
  if (!std::isfinite(norm)) {
    throw Error(ErrorCode::nonfinite_gradient, "join", fmt::format("round {}", round() + 1),
                "a gradient is NaN or infinite", "try a lower --lr, or --clip-norm");
  }
  // The paper's N^-1/2, in units of one member's mean: the mean of N is so much shorter.
  if (clip > 0.0 && norm > clip * std::sqrt(members_)) scale *= clip * std::sqrt(members_) / norm;
  compressor_->change_schedule(Schedule(std::clamp(ratio_, 1e-9, 1.0)));
  Bytes message(compressor_->bound(contribution.gradients));
  message.resize(compressor_->compress(contribution.gradients, message, {.scale = scale}));
  try {
    log_->sent(sequence_ + 1, contribution.examples, message);
  } catch (...) {
    compressor_->restore();
    throw;
  }
  message_ = std::move(message);
  about_ = contribution;
  about_.residual_norm = sampled_norm();
  about_.gradients.clear();
  buffers_.assign(contribution.buffers.begin(), contribution.buffers.end());
  about_.buffers = {};
  base_ = round();
  lease_ = {};
  ++sequence_;
  outstanding_ = true;
  in_round_ = false;
  outcome_ = Outcome::none;
}

Bytes Member::round_request(double rtt) const {
  const auto buffers = std::as_bytes(std::span(buffers_));
  const std::span<const std::byte> blobs[] = {message_, buffers};
  nlohmann::json head = about_now(rtt);
  head["base"] = base_;
  head["examples"] = about_.examples;
  head["loss"] = std::isfinite(about_.loss) ? about_.loss : 0.0;
  head["seconds"] = about_.seconds;
  head["residual"] = about_.residual_norm;
  return write_packet(head, blobs);
}

/// Of what waits to be sent, from a sample: for people, and every round.
double Member::sampled_norm() const {
  constexpr std::size_t kSample = 4096;
  double squares = 0.0;
  for (std::size_t t = 0; t < state_.tensors().size(); ++t) {
    const std::span<const float> v = state_.residual(t);
    const std::size_t stride = std::max<std::size_t>(1, v.size() / kSample);
    for (std::size_t i = 0; i < v.size(); i += stride) {
      squares += static_cast<double>(stride) * v[i] * v[i];
    }
  }
  return std::sqrt(squares);
}

void Member::evaluated(double loss, std::vector<std::pair<std::string, double>> metrics) {
  evaluates_ = false;
  if (metrics.empty()) return;
  nlohmann::json list = nlohmann::json::array();
  for (const auto& [name, value] : metrics) list.push_back({name, value});
  nlohmann::json head = about_now(0.0);
  head["round"] = round();
  head["loss"] = std::isfinite(loss) ? loss : 0.0;
  head["metrics"] = list;
  evaluation_ = write_packet(head);
}

void Member::settle(Outcome outcome) {
  outcome_ = outcome;
  outcome == Outcome::committed ? compressor_->commit() : compressor_->restore();
  outstanding_ = false;
  log_->settled(sequence_, outcome);
}

void Member::take_reply(const Packet& packet) {
  const nlohmann::json& head = packet.head;
  const Outcome outcome = outcome_in(head);
  hub_round_ = whole_number(head, "round");
  finished_ = flag(head, "finished");
  members_ = std::max(1.0, number(head, "members"));
  held_ = number(head, "held");
  if (outstanding_) {
    outcome_ = outcome;
    in_round_ = outcome == Outcome::open;
    if (outcome == Outcome::open || outcome == Outcome::none) return;
    settle(outcome);
  }
  told_ = true;
  if (flag(head, "snapshot")) {
    needs_snapshot_ = true;
  } else {
    apply_commits(packet);
  }
  const nlohmann::json& lease = head.at("lease");
  lease_ = {.sequence = whole_number(lease, "sequence"),
            .epoch = whole_number(lease, "epoch"),
            .first = static_cast<std::int64_t>(whole_number(lease, "first")),
            .count = static_cast<std::int64_t>(whole_number(lease, "count"))};
  ratio_ = number(head, "ratio");
  inner_lr_ = number(head, "inner_lr");
  wants_buffers_ = flag(head, "buffers");
  evaluates_ = flag(head, "evaluate");
  const std::uint64_t acknowledged = whole_number(head, "saved");
  while (saved_.size() > 1 && saved_.front() < acknowledged) {
    forget_before(saved_.front());
    saved_.erase(saved_.begin());
  }
  const std::uint64_t last_saved = saved_.empty() ? 0 : saved_.back();
  const auto every = static_cast<std::uint64_t>(options_.terms.save_every);
  if (flag(head, "save") || finished_ || sequence_ - last_saved >= every) save();
}

std::optional<Member::HubWentBack> Member::hub_went_back() {
  return std::exchange(hub_went_back_, {});
}

std::optional<Member::WentBack> Member::went_back() { return std::exchange(went_back_, {}); }

}  // namespace dgc::hub
