// The requests of members, as docs/hub.md specifies them. A request that is about the next round
// waits: its answer is the commit. So a round costs a member one round trip.
#include "hub/hub.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "dgc/error.h"
#include "dgc/version.h"
#include "engine/secret.h"
#include "hub/hub_impl.h"

namespace dgc::hub {
namespace {

/// Commits in one answer; the rest comes with the next.
constexpr std::size_t kMostBytesOfCommits = std::size_t{16} << 20;
constexpr std::size_t kSmallBody = std::size_t{64} << 10;
/// Seconds that a member has for its initial parameters before another one is asked.
constexpr double kGiving = 120.0;
/// Numbers of messages stay below this: one more is a number, too, and SQLite knows it.
constexpr std::uint64_t kMostMessages = std::uint64_t{1} << 62;
constexpr std::uint64_t kMostPositions = std::uint64_t{1} << 40;
/// Norm of an update, by example: a sum of such updates is finite for as long as a run may take.
constexpr double kMostNorm = 1e10;
/// Who look at the same time see the same: a status costs a walk through the journal.
constexpr double kStatusAge = 0.5;

/// How large the body of a request may be.
enum class Size { none, small, head, message, snapshot };

struct Route {
  std::string_view path, method;
  std::optional<Right> right;  // none: any
  Size body;
};
constexpr Route kRoutes[] = {
    {"/v1/run", "GET", std::nullopt, Size::none},
    {"/v1/status", "GET", Right::read, Size::none},
    {"/metrics", "GET", Right::read, Size::none},
    {"/v1/commits", "GET", Right::work, Size::none},
    {"/v1/snapshot", "GET", Right::work, Size::none},
    {"/v1/enroll", "POST", Right::invite, Size::small},
    {"/v1/join", "POST", Right::work, Size::head},
    {"/v1/initial", "POST", Right::work, Size::snapshot},
    {"/v1/round", "POST", Right::work, Size::message},
    {"/v1/wait", "POST", Right::work, Size::small},
    {"/v1/evaluation", "POST", Right::work, Size::small},
    {"/v1/leave", "POST", Right::work, Size::small},
};

const Route* route_to(std::string_view path) {
  const auto* const found = std::find_if(std::begin(kRoutes), std::end(kRoutes),
                                         [&](const Route& route) { return route.path == path; });
  return found == std::end(kRoutes) ? nullptr : found;
}

/// Who works may look, too.
bool may(Right has, const Route& route) {
  return !route.right || has == *route.right || (*route.right == Right::read && has == Right::work);
}

Response text_response(const char* type, const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {.type = type, .body = std::make_shared<const Bytes>(bytes.begin(), bytes.end())};
}

/// What members say may be no UTF-8.
std::string dump(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::uint64_t message_number(const nlohmann::json& head) {
  const std::uint64_t sequence = whole_number(head, "sequence");
  if (sequence >= kMostMessages) {
    throw Error(ErrorCode::invalid_argument, "hub", "sequence", "is no number of a message");
  }
  return sequence;
}

std::string random_text() { return detail::new_secret(); }

[[noreturn]] void refuse(ErrorCode code, const std::string& subject, const std::string& what,
                         const std::string& hint = {}) {
  throw Error(code, "hub", subject, what, hint);
}

/// A member's number that is of no use is taken as 0: nothing is decided by it.
double harmless(const nlohmann::json& head, const char* name, double most) {
  const auto found = head.find(name);
  if (found == head.end() || !found->is_number()) return 0.0;
  const double value = found->get<double>();
  return value >= 0.0 && value <= most ? value : 0.0;
}

int status_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::configuration_mismatch:
    case ErrorCode::wrong_order:
    case ErrorCode::state_mismatch:
    case ErrorCode::shape_mismatch:
      return 409;
    case ErrorCode::limit_exceeded:
      return 413;
    case ErrorCode::io:
    case ErrorCode::internal:
      return 503;
    default:
      return 400;
  }
}

}  // namespace

Response packet_response(const nlohmann::json& head,
                         std::span<const std::span<const std::byte>> blobs) {
  return {.body = std::make_shared<const Bytes>(write_packet(head, blobs))};
}

Response problem(int status, const Error& error) {
  Response response = packet_response({{"error", error_name(error.code())},
                                       {"subject", error.subject()},
                                       {"problem", error.problem()},
                                       {"hint", error.hint()}});
  response.status = status;
  return response;
}

Hub::Hub(std::filesystem::path folder, Journal& journal, HubOptions options, HubPlan plan,
         HubWatcher watcher)
    : impl_(std::make_unique<Impl>(std::move(folder), journal, std::move(options), std::move(plan),
                                   std::move(watcher))) {}
Hub::~Hub() = default;

Hub::Impl::Impl(std::filesystem::path folder_of_run, Journal& the_journal, HubOptions the_options,
                HubPlan the_plan, HubWatcher the_watcher)
    : folder(std::move(folder_of_run)),
      journal(the_journal),
      options(std::move(the_options)),
      plan(std::move(the_plan)),
      watcher(std::move(the_watcher)),
      rounds(options.rules) {
  options.terms.check();
  if (!journal.fact("run")) journal.set_fact("run", random_text());
  if (!journal.fact("model")) return;
  try {
    resume();
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorCode::bad_state, "hub", (folder / kJournalFile).string(), error.what(),
                "it is damaged; restore it from a backup");
  }
}

bool Hub::finished() const noexcept { return impl_->done; }
std::uint64_t Hub::round() const noexcept { return impl_->rounds.closed(); }
Replica* Hub::replica() noexcept { return impl_->replica ? &*impl_->replica : nullptr; }
std::uint64_t Hub::Impl::parameters() const noexcept {
  std::uint64_t elements = 0;
  if (replica) {
    for (const TensorSpec& spec : replica->model()) elements += spec.elements();
  }
  return elements;
}
std::uint64_t Hub::parameters() const noexcept { return impl_->parameters(); }
const Rounds& Hub::rounds() const noexcept { return impl_->rounds; }
const Leases* Hub::leases() const noexcept { return impl_->leases ? &*impl_->leases : nullptr; }
const HubPlan& Hub::plan() const noexcept { return impl_->plan; }
nlohmann::json Hub::status(double now) const { return impl_->status(now); }
std::string Hub::metrics(double now) const { return Impl::metrics(impl_->status(now)); }
void Hub::set_clock(double time_at_zero) noexcept { impl_->clock_offset = time_at_zero; }
const std::string& Hub::failure() const noexcept { return impl_->failure; }
std::size_t Hub::present() const noexcept {
  return static_cast<std::size_t>(std::count_if(impl_->guests.begin(), impl_->guests.end(),
                                                [](const auto& g) { return g.second.here; }));
}
void Hub::save() {
  if (impl_->has_parameters && impl_->failure.empty()) impl_->write_snapshot();
}

std::size_t Hub::body_limit(const Request& head) {
  const Route* const route = route_to(head.path);
  if (route == nullptr || route->method != head.method || route->body == Size::none) return 0;
  const auto token = impl_->journal.check_token(head.token);
  if (!token || !may(token->right, *route)) return 0;
  if (route->body == Size::small) return kSmallBody;
  if (route->body == Size::head) return kLongestHead;
  if (!impl_->replica) return kSmallBody;  // the member has to join first
  std::uint64_t elements = impl_->replica->buffers().size();
  for (const TensorSpec& spec : impl_->replica->model()) elements += spec.elements() + 64;
  // A snapshot has the parameters, as much momentum, and a head.
  if (route->body == Size::snapshot) return elements * 8 + kLongestHead;
  // A message, whole, in the widest values, with positions' bits and headers.
  return elements * 5 + kSmallBody;
}

void Hub::Impl::guarded(const std::function<void()>& work) noexcept {
  try {
    work();
  } catch (const std::exception& error) {
    if (failure.empty()) failure = error.what();
    if (watcher.said) watcher.said(error.what());
  }
}

void Hub::count_refused(const std::string& origin, const std::string& why, double now) {
  ++impl_->refused;
  // One line for an origin in a while is enough to know; the count says how often.
  auto& counts = impl_->refused_by_origin;
  if (counts.size() > 1000) counts.clear();
  const std::uint64_t count = ++counts[origin];
  if ((count & (count - 1)) != 0) return;
  const std::string times = count > 1 ? fmt::format(" ({} times so far)", count) : "";
  impl_->note("", fmt::format("refused {}: {}{}", origin, why, times), now);
}

std::uint64_t Hub::handle(const Request& request, double now, const Respond& respond) {
  ++impl_->requests;
  std::uint64_t waits = 0;
  std::optional<Response> response;
  try {
    response = impl_->answer(request, now, respond, waits);
    const int status = response ? response->status : 0;
    if (status == 403 || status == 404 || status == 405) {
      count_refused(request.origin,
                    fmt::format("{} {} (status {})", request.method, request.path, status), now);
    }
  } catch (const Error& error) {
    const int status = status_of(error.code());
    if (status == 400) count_refused(request.origin, error.what(), now);
    response = problem(status, error);
  } catch (const nlohmann::json::exception& error) {
    // A field that is absent, or of another type.
    count_refused(request.origin, error.what(), now);
    response = problem(400, Error(ErrorCode::bad_state, "hub", request.path, error.what()));
  } catch (const std::exception& error) {
    response = problem(503, as_error(error));
  }
  if (!response) return waits;
  if (waits != 0) give_up(waits);  // it waited already when something failed
  respond(std::move(*response));
  return 0;
}

void Hub::give_up(std::uint64_t waiting) noexcept {
  impl_->waiting.remove_if([&](const Impl::Waiting& w) { return w.id == waiting; });
}

void Hub::give_up_all() noexcept { impl_->waiting.clear(); }

void Hub::connection_lost(const std::string& session, double now) {
  const auto found = impl_->sessions.find(session);
  if (found == impl_->sessions.end()) return;
  Impl::Guest& guest = impl_->guests[found->second];
  if (!guest.here) return;
  // It has connected again, and the old connection ends only now.
  const auto& waiting = impl_->waiting;
  if (std::any_of(waiting.begin(), waiting.end(),
                  [&](const Impl::Waiting& w) { return w.name == found->second; })) {
    return;
  }
  guest.here = false;
  impl_->rounds.depart(found->second);
  impl_->note(found->second, "connection lost", now);
  if (!impl_->has_parameters) impl_->news = true;  // others may give them
  impl_->guarded([&] { impl_->close_all_due(now); });
}

const nlohmann::json& Hub::Impl::status_now(double now) {
  if (now - looked > kStatusAge) {
    looked_at = status(now);
    looked = now;
  }
  return looked_at;
}

std::optional<Response> Hub::Impl::answer(const Request& request, double now,
                                          const Respond& respond, std::uint64_t& waits) {
  const Route* const route = route_to(request.path);
  if (route == nullptr) {
    return problem(404, Error(ErrorCode::invalid_argument, "hub", request.path,
                              "is no request of a hub", "docs/hub.md has the list"));
  }
  if (route->method != request.method) {
    Response response =
        problem(405, Error(ErrorCode::invalid_argument, "hub", request.path,
                           fmt::format("is asked by {}, not {}", route->method, request.method)));
    response.allow = route->method;
    return response;
  }
  const auto token = journal.check_token(request.token);
  if (!token) {
    return problem(401, Error(ErrorCode::invalid_argument, "hub", "token", "is unknown or revoked",
                              "ask whoever runs the hub for another"));
  }
  if (!may(token->right, *route)) {
    return problem(403,
                   Error(ErrorCode::invalid_argument, "hub", fmt::format("token '{}'", token->name),
                         fmt::format("is for '{}', not for '{}'", name_of(token->right),
                                     name_of(*route->right))));
  }
  const std::string& name = token->name;
  if (request.path == "/v1/run") return packet_response(run_facts(*token));
  if (request.path == "/v1/status") {
    return text_response("application/json", dump(status_now(now)));
  }
  if (request.path == "/metrics") {
    return text_response("text/plain; version=0.0.4", metrics(status_now(now)));
  }
  if (route->method == "GET") {
    Response response;
    if (request.path == "/v1/snapshot") {
      if (!has_parameters && is_given(now)) {
        waiting.remove_if([&](const Waiting& w) { return w.name == name; });
        waits = ++last_id;
        waiting.push_back({waits, name, 0, 0, now, respond, /*for_parameters=*/true});
        return {};
      }
      response.body = snapshot();
    } else {
      std::uint64_t after = 0;
      const std::string_view query = request.query;
      if (!query.starts_with("after=") ||
          std::from_chars(query.data() + 6, query.data() + query.size(), after).ec != std::errc{}) {
        refuse(ErrorCode::invalid_argument, "commits", "needs after=ROUND");
      }
      response = commits(after);
    }
    if (const auto guest = guests.find(name); guest != guests.end()) {
      guest->second.line.bytes_down += response.body->size();
    }
    bytes_down += response.body->size();
    return response;
  }

  const Packet packet = read_packet(request.body);
  if (request.path == "/v1/enroll") return enroll(packet, now);
  if (request.path == "/v1/join") return join(name, request, packet, now);
  Guest& guest = guest_of(packet, name, now);
  guest.line.bytes_up += request.body.size();
  bytes_up += request.body.size();
  if (request.path == "/v1/initial") return initial(name, packet, now);
  if (request.path == "/v1/evaluation") return evaluation(name, packet, now);
  if (request.path == "/v1/leave") return leave(name, packet, now);
  if (!has_parameters) refuse(ErrorCode::wrong_order, "round", "there are no parameters yet");
  const std::uint64_t sequence = message_number(packet.head);
  const std::uint64_t have = whole_number(packet.head, "have");
  if (have > rounds.closed()) {
    refuse(ErrorCode::state_mismatch, fmt::format("round {}", have),
           fmt::format("has not happened here: the hub is at round {}", rounds.closed()),
           "the hub was restored from an older copy; join with another --state folder");
  }
  guest.rtt = harmless(packet.head, "rtt", 1e6);
  if (packet.head.contains("saved")) set_saved(name, whole_number(packet.head, "saved"));
  if (request.path == "/v1/round") {
    if (auto said = take_message(name, packet, now)) return std::move(*said);
  }
  // One answer waits for each member: the one before has lost its reader.
  waiting.remove_if([&](const Waiting& w) { return w.name == name; });
  if (auto now_known = reply(name, sequence, have, now, /*must=*/false)) return *now_known;
  const std::uint64_t id = ++last_id;
  waits = id;
  waiting.push_back({id, name, sequence, have, now, respond});
  close_all_due(now);
  // Its own message may have closed the round: then it has its answer.
  if (std::none_of(waiting.begin(), waiting.end(), [&](const auto& w) { return w.id == id; })) {
    waits = 0;
  }
  return std::nullopt;
}

nlohmann::json Hub::Impl::run_facts(const TokenLine& token) const {
  return {{"protocol", kProtocol},
          {"version", DGC_VERSION},
          {"run", *journal.fact("run")},
          {"settings", options.settings},
          {"terms", to_json(options.terms)},
          {"private_data", plan.private_data},
          {"round", rounds.closed()},
          {"finished", done},
          {"name", token.name},
          {"right", name_of(token.right)}};
}

Response Hub::Impl::enroll(const Packet& packet, double now) {
  const std::string wanted = text(packet.head, "name");
  if (!is_name(wanted) || wanted.size() > 56) {
    refuse(ErrorCode::invalid_argument, "name", "is no name of a member",
           "use up to 56 letters, digits, '-' and '_'");
  }
  const auto known = journal.tokens();
  if (known.size() >= 100'000) refuse(ErrorCode::limit_exceeded, "members", "are too many");
  const auto taken = [&](const std::string& name) {
    return std::any_of(known.begin(), known.end(), [&](const auto& t) { return t.name == name; });
  };
  std::string name = wanted;
  for (int i = 2; taken(name); ++i) name = fmt::format("{}-{}", wanted, i);
  const std::string token = journal.add_token(name, Right::work, now + clock_offset);
  note(name, "got a token by the invitation", now);
  return packet_response({{"name", name}, {"token", token}});
}

Response Hub::Impl::join(const std::string& name, const Request& request, const Packet& packet,
                         double now) {
  const nlohmann::json& head = packet.head;
  if (whole_number(head, "protocol") != kProtocol || text(head, "version") != DGC_VERSION) {
    refuse(
        ErrorCode::configuration_mismatch, "version",
        fmt::format("the hub has dgc {} (protocol {}), the member dgc {} (protocol {})",
                    DGC_VERSION, kProtocol, text(head, "version"), whole_number(head, "protocol")),
        "install the same version on both");
  }
  const auto model = model_from(head.at("model"), options.most_parameters);
  const auto buffers = model_from(head.at("buffers"), options.most_parameters);
  if (model.empty()) refuse(ErrorCode::bad_state, "model", "has no tensor");
  const auto positions = static_cast<std::int64_t>(
      std::min<std::uint64_t>(whole_number(head, "positions"), kMostPositions));
  const std::string data = text(head, "data");
  if (!replica) {
    if (!plan.private_data) {
      if (positions < 1) refuse(ErrorCode::invalid_argument, "data", "has no examples");
      plan.positions = positions;
    }
    begin(model, buffers);
    // Only now: what cannot begin must not be found by the next start.
    Transaction transaction(journal.database());
    if (!plan.private_data) journal.set_fact("positions", fmt::format("{}", positions));
    journal.set_fact("data", data);
    journal.set_fact(
        "model", nlohmann::json{{"model", to_json(model)}, {"buffers", to_json(buffers)}}.dump());
    transaction.commit();
    take_initial_parameters();
  } else if (const std::string other = difference(replica->model(), model); !other.empty()) {
    refuse(ErrorCode::configuration_mismatch, "model", other, "train the model of the run");
  } else if (const std::string too = difference(replica->buffer_specs(), buffers); !too.empty()) {
    refuse(ErrorCode::configuration_mismatch, "buffers", too, "train the model of the run");
  }
  if (!plan.private_data && (positions != plan.positions || data != journal.fact("data"))) {
    refuse(ErrorCode::configuration_mismatch, "data",
           fmt::format("the run has {} ({} positions), the member has {} ({})",
                       *journal.fact("data"), plan.positions, data, positions),
           "give all members the same data, or start the hub with --private-data");
  }

  Guest& guest = guests[name];
  sessions.erase(guest.session);
  guest.session = random_text();
  sessions[guest.session] = name;
  guest.seen = now;
  guest.origin = request.origin;
  // Of members that do not say so, too.
  guest.can_evaluate = !head.contains("evaluates") || flag(head, "evaluates");
  waiting.remove_if([&](const Waiting& w) { return w.name == name; });

  // Where it can go on from: as it is, if it still lives, or from one of the states that it has
  // saved, the newest that nobody else works on by now.
  const bool alive = flag(head, "alive");
  const std::uint64_t last = message_number(head);
  std::uint64_t resume_from = alive ? last : 0;
  if (guest.line.revoked_after) resume_from = 0;
  if (!alive || guest.line.revoked_after) {
    if (head.contains("saved") && head["saved"].is_array()) {
      for (const nlohmann::json& entry : head["saved"]) {
        if (!entry.is_number_unsigned()) continue;
        const auto sequence = entry.get<std::uint64_t>();
        if (sequence > last) continue;
        if (guest.line.revoked_after && sequence > *guest.line.revoked_after) continue;
        resume_from = std::max(resume_from, sequence);
      }
    }
    rounds.withdraw(name);
    inside.erase(name);
    if (leases) {
      const std::int64_t lost = leases->held_by(name);
      leases->release_after(name, resume_from);
      news = true;
      if (lost > leases->held_by(name) && !guest.line.revoked_after) {
        note(name, fmt::format("came back from what it had saved at message {}", resume_from), now);
      }
    }
    guest.line.saved = resume_from;
    keep_leases(name);
  }
  const Outcome outcome = rounds.outcome_of(name, last);
  rounds.arrive(name, now);
  rounds.told(name, now);
  if (!guest.here) note(name, fmt::format("joined from {}", request.origin), now);
  guest.here = true;
  const Rounds::Member& member = rounds.members().at(name);
  // One gives the initial parameters; another one only where that takes too long.
  if (!has_parameters && !is_given(now)) {
    giver = name;
    asked_giver = now;
  }
  nlohmann::json said = {{"session", guest.session},
                         {"name", name},
                         {"round", rounds.closed()},
                         {"needs_parameters", !has_parameters && giver == name},
                         {"resume_from", resume_from},
                         // The hub's last word on its messages: the next has a number above it.
                         {"last_sequence", member.sequence},
                         {"outcome", static_cast<int>(outcome)},
                         {"outcome_round", member.outcome_round},
                         {"finished", done}};
  return packet_response(said);
}

Hub::Impl::Guest& Hub::Impl::guest_of(const Packet& packet, const std::string& name, double now) {
  const std::string session = text(packet.head, "session");
  Guest& guest = guests[name];
  if (guest.session.empty() || session != guest.session) {
    refuse(ErrorCode::wrong_order, fmt::format("session of '{}'", name),
           "is over: another process has joined by this name, or the hub was started again",
           "join again");
  }
  guest.seen = now;
  // It has heard from where it goes on. An answer to /v1/join that was lost has to be the same.
  if (guest.line.revoked_after) {
    guest.line.revoked_after.reset();
    keep_leases(name);
  }
  if (!guest.here) {
    guest.here = true;
    rounds.arrive(name, now);
    note(name, "is back", now);
  }
  return guest;
}

Response Hub::Impl::initial(const std::string& name, const Packet& packet, double now) {
  if (has_parameters) return packet_response({{"taken", false}});
  // As a snapshot of round 0: checked like one.
  Replica first(replica->model(), replica->buffer_specs(), options.terms);
  first.load(packet.blob(0));
  if (first.round() != 0) refuse(ErrorCode::bad_state, "parameters", "are not of round 0");
  *replica = std::move(first);
  write_snapshot();
  has_parameters = true;
  news = true;
  note(name, "gave the initial parameters", now);
  close_all_due(now);
  return packet_response({{"taken", true}});
}

Hub::Impl::News Hub::Impl::news_after(std::uint64_t round) const {
  News missed;
  const std::uint64_t last = rounds.closed();
  // `round` is what a member says, and may be any number: one is added to those below `last` alone.
  if (round >= last) return missed;
  const auto first = journal.first_commit();
  missed.snapshot = !first || *first > round + 1;
  // Who has missed many on a slow link would never get up with the others by commits alone.
  if (round + 1 < last && journal.commit_bytes(round, last) > 4 * parameters()) {
    missed.snapshot = true;
  }
  std::size_t size = 0;
  for (std::uint64_t r = round; !missed.snapshot && r < last && size < kMostBytesOfCommits; ++r) {
    missed.commits.push_back(*journal.commit_packet(r + 1));
    size += missed.commits.back().size();
  }
  return missed;
}

Response Hub::Impl::commits(std::uint64_t after) const {
  const News missed = news_after(after);
  return packet_response({{"round", rounds.closed()}, {"snapshot", missed.snapshot}},
                         missed.blobs());
}

bool Hub::Impl::is_given(double now) const {
  const auto found = guests.find(giver);
  return found != guests.end() && found->second.here && now - asked_giver <= kGiving;
}

std::shared_ptr<const Bytes> Hub::Impl::snapshot() {
  // Whoever asks joins again, and may be the one to give them.
  if (!has_parameters) refuse(ErrorCode::wrong_order, "parameters", "are not there yet");
  auto bytes = packed.lock();
  if (!bytes || packed_round != replica->round()) {
    bytes = std::make_shared<const Bytes>(replica->snapshot());
    packed = bytes;
    packed_round = replica->round();
  }
  return bytes;
}

std::optional<Response> Hub::Impl::take_message(const std::string& name, const Packet& packet,
                                                double now) {
  const nlohmann::json& head = packet.head;
  const std::uint64_t sequence = message_number(head);
  const std::uint64_t base = whole_number(head, "base");
  Guest& guest = guests[name];
  if (rounds.outcome_of(name, sequence) != Outcome::none) return std::nullopt;  // sent again
  // Everything is checked before anything changes.
  Inside in{.part = {.member = name,
                     .sequence = sequence,
                     .base = base,
                     .examples = whole_number(head, "examples")},
            .message = Bytes(packet.blob(0).begin(), packet.blob(0).end()),
            .loss = harmless(head, "loss", 1e30)};
  const CheckedMessage message(in.message);
  for (const FrameInfo& frame : message.frames()) {
    if (frame.tensor >= replica->model().size()) {
      refuse(ErrorCode::unknown_tensor, fmt::format("tensor {}", frame.tensor),
             "is not in the model");
    }
    if (frame.elements != replica->model()[frame.tensor].elements()) {
      refuse(ErrorCode::invalid_argument, replica->model()[frame.tensor].name,
             "has another size than in the model");
    }
  }
  const std::int64_t most = 4 * std::max<std::int64_t>(plan.batch, 1);
  if (in.part.examples < 1 || in.part.examples > static_cast<std::uint64_t>(most)) {
    refuse(ErrorCode::invalid_argument, "examples",
           fmt::format("are {}, not 1 to {}", in.part.examples, most));
  }
  if (packet.blobs.size() > 1 && !packet.blobs[1].empty()) {
    if (packet.blobs[1].size() != replica->buffers().size() * sizeof(float)) {
      refuse(ErrorCode::invalid_argument, "buffers", "have another size than the model's");
    }
    in.buffers.assign(packet.blobs[1].begin(), packet.blobs[1].end());
  }
  double squares = 0.0;
  for (const Entries& entries : decode_entries(message, kMaxElements)) {
    for (const float x : entries.values) squares += static_cast<double>(x) * x;
  }
  // By example: who has more of them sends larger sums.
  in.norm = std::sqrt(squares) / static_cast<double>(in.part.examples);
  if (!(in.norm <= kMostNorm)) {
    refuse(ErrorCode::invalid_argument, fmt::format("message {} of '{}'", sequence, name),
           fmt::format("is an update of norm {:.3g}: the parameters would overflow", in.norm),
           "the training diverges: try a lower --lr");
  }
  const double seconds = harmless(head, "seconds", 1e6);
  if (seconds > 0.0) {
    const double speed = static_cast<double>(in.part.examples) / seconds;
    guest.speed = guest.speed == 0.0 ? speed : 0.7 * guest.speed + 0.3 * speed;
  }
  guest.loss = in.loss;
  guest.residual_norm = harmless(head, "residual", 1e30);
  guest.evaluates = false;
  const Outcome outcome = rounds.message(name, sequence, base, now);
  if (outcome == Outcome::none) {
    refuse(ErrorCode::wrong_order, fmt::format("message {} of '{}'", sequence, name),
           fmt::format("another one is due, after {}", rounds.members().at(name).sequence),
           "join again");
  }
  if (outcome == Outcome::open) inside[name] = std::move(in);
  if (outcome == Outcome::taken_back && !done) note(name, "sent a message that was too old", now);
  return std::nullopt;
}

Response Hub::Impl::evaluation(const std::string& name, const Packet& packet, double now) {
  EvaluationNote said{.round = whole_number(packet.head, "round"),
                      .loss = number(packet.head, "loss"),
                      .member = name};
  for (const nlohmann::json& metric : packet.head.at("metrics")) {
    if (!metric.is_array() || metric.size() != 2 || !metric[0].is_string() ||
        !metric[1].is_number() || said.metrics.size() >= 16) {
      refuse(ErrorCode::bad_state, "metrics", "are no list of names and numbers");
    }
    said.metrics.emplace_back(metric[0], metric[1]);
  }
  if (said.metrics.empty()) refuse(ErrorCode::bad_state, "metrics", "are none");
  if (said.round > rounds.closed()) refuse(ErrorCode::wrong_order, "round", "is not over yet");
  said.metric = said.metrics.front().second;
  Guest& guest = guests[name];
  // Each time that it was asked, once: so sending it again is of no harm, and many are of no use.
  if (!guest.evaluates) return packet_response({{"taken", false}});
  guest.evaluates = false;
  rounds.arrive(name, now);
  rounds.told(name, now);
  journal.add_evaluation(said, now + clock_offset);
  if (watcher.evaluated) watcher.evaluated(said);
  return packet_response({{"taken", true}});
}

Response Hub::Impl::leave(const std::string& name, const Packet& packet, double now) {
  if (packet.head.contains("saved")) set_saved(name, whole_number(packet.head, "saved"));
  Guest& guest = guests[name];
  if (leases) leases->release_after(name, guest.line.saved);
  news = true;
  keep_leases(name);
  guest.here = false;
  sessions.erase(guest.session);
  guest.session.clear();
  waiting.remove_if([&](const Waiting& w) { return w.name == name; });
  rounds.depart(name);
  note(name, "left", now);
  close_all_due(now);
  return packet_response({{"round", rounds.closed()}});
}

void Hub::Impl::set_saved(const std::string& name, std::uint64_t saved) {
  Guest& guest = guests[name];
  if (saved <= guest.line.saved) return;
  guest.line.saved = saved;
  if (leases) leases->saved(name, saved);
  // The member throws older residuals away when it hears of this: a hub that is started again has
  // to know it, too.
  Transaction transaction(journal.database());
  journal.save_member(name, guest.line);
  if (leases) journal.set_fact("leases", leases->to_json().dump());
  transaction.commit();
}

std::int64_t Hub::Impl::share_of(const Guest& guest) const {
  // A slow member gets as many as it can do in the time of the median one.
  std::vector<double> speeds;
  for (const auto& [name, other] : guests) {
    if (other.here && other.speed > 0.0) speeds.push_back(other.speed);
  }
  if (guest.speed <= 0.0 || speeds.size() < 2) return plan.batch;
  const auto middle = speeds.begin() + static_cast<std::ptrdiff_t>(speeds.size() / 2);
  std::nth_element(speeds.begin(), middle, speeds.end());
  const double share = static_cast<double>(plan.batch) * guest.speed / *middle;
  // Speeds are never quite the same: who is nearly as fast does as much.
  if (share > 0.75 * static_cast<double>(plan.batch)) return plan.batch;
  return std::clamp<std::int64_t>(std::llround(share), 1, plan.batch);
}

// What leases count as done and what members are known to have saved go together: a member that has
// to go back goes to the latter. A transaction may be open here.
void Hub::Impl::write_leases() {
  for (auto& [name, guest] : guests) {
    if (guest.kept == guest.line.saved) continue;
    journal.save_member(name, guest.line);
    guest.kept = guest.line.saved;
  }
  if (leases) journal.set_fact("leases", leases->to_json().dump());
}

void Hub::Impl::keep_leases(const std::string& name) {
  Transaction transaction(journal.database());
  journal.save_member(name, guests.at(name).line);
  guests.at(name).kept = guests.at(name).line.saved;
  write_leases();
  transaction.commit();
}

Lease Hub::Impl::lease_for(const std::string& name, std::uint64_t sequence, bool keep) {
  const std::int64_t count = share_of(guests.at(name));
  if (!leases) return {.sequence = sequence, .count = count};
  if (leases->has(name, sequence)) return leases->take(name, sequence, count);
  // Who does not save, or asks for ever other messages, does not get everything.
  const auto most = 2 * static_cast<std::size_t>(options.terms.save_every) + 16;
  if (leases->messages_of(name) >= most) return {.sequence = sequence};
  const Lease lease = leases->take(name, sequence, count);
  // Before anybody is told of it: after a crash nobody else must get the same.
  if (keep && lease.count > 0) write_leases();
  return lease;
}

std::optional<Response> Hub::Impl::reply(const std::string& name, std::uint64_t sequence,
                                         std::uint64_t have, double now, bool must, double held) {
  const Outcome outcome = sequence == 0 ? Outcome::none : rounds.outcome_of(name, sequence);
  const std::uint64_t last = rounds.closed();
  Lease lease{.sequence = sequence + 1};
  if (outcome != Outcome::open && !done) lease = lease_for(name, sequence + 1);
  const bool idle = outcome != Outcome::open && lease.count == 0 && !done;
  const bool nothing = outcome == Outcome::open || idle;
  if (idle) rounds.idle(name);
  // Somebody who has nothing to do saves, so that what it did is known to be done.
  const Guest& guest = guests.at(name);
  const bool save = lease.count == 0 && outcome != Outcome::open && guest.line.saved < sequence;
  if (nothing && !save && !must && have >= last) return std::nullopt;
  if (outcome == Outcome::open && !must) return std::nullopt;

  nlohmann::json head = {{"outcome", static_cast<int>(outcome)},
                         {"outcome_round", 0},
                         {"round", last},
                         {"save", save},
                         {"saved", guest.kept},
                         {"finished", done},
                         {"held", held}};
  head["members"] =
      std::max<std::int64_t>(1, std::count_if(rounds.members().begin(), rounds.members().end(),
                                              [](const auto& m) { return m.second.active; }));
  if (const auto found = rounds.members().find(name); found != rounds.members().end()) {
    head["outcome_round"] = found->second.outcome_round;
  }
  News missed;
  if (outcome != Outcome::open) {
    missed = news_after(have);
    const HubPlan::Pace now_due = pace();
    head["lease"] = {{"sequence", lease.sequence},
                     {"epoch", lease.epoch},
                     {"first", lease.first},
                     {"count", lease.count}};
    head["ratio"] = now_due.ratio;
    head["inner_lr"] = now_due.inner_lr;
    // The commit that its next message will be in, if all goes as usual.
    const bool asked = (plan.evaluate_every > 0 && (last + 1) % plan.evaluate_every == 0) ||
                       (plan.rounds > 0 && last + 1 >= plan.rounds) ||
                       (leases && leases->all_taken());
    head["buffers"] = !replica->buffers().empty() && asked;
    const bool evaluates = evaluation_due != 0 && guest.can_evaluate && (lease.count > 0 || done) &&
                           have + missed.commits.size() >= last;
    head["evaluate"] = evaluates;
    if (evaluates) {
      evaluation_due = 0;
      guests.at(name).evaluates = true;
    }
    rounds.told(name, now);
    if (idle) rounds.idle(name);
    if (evaluates) rounds.depart(name);  // nobody waits for it meanwhile
  }
  head["snapshot"] = missed.snapshot;
  Response response = packet_response(head, missed.blobs());
  guests.at(name).line.bytes_down += response.body->size();
  bytes_down += response.body->size();
  return response;
}

void Hub::Impl::answer_waiting(double now, bool all) {
  for (auto it = waiting.begin(); it != waiting.end();) {
    const bool must = all || now - it->since >= options.poll;
    std::optional<Response> response;
    try {
      if (!it->for_parameters) {
        response = reply(it->name, it->sequence, it->have, now, must, now - it->since);
      } else if (has_parameters || must || !is_given(now)) {
        response = Response{.body = snapshot()};
        bytes_down += response->body->size();
      }
    } catch (const Error& error) {
      response = problem(status_of(error.code()), error);
    } catch (const std::exception& error) {
      response = problem(503, as_error(error));
    }
    if (!response) {
      ++it;
      continue;
    }
    const Respond respond = std::move(it->respond);
    it = waiting.erase(it);
    respond(std::move(*response));
  }
}

void Hub::Impl::note(const std::string& member, const std::string& what, double now) {
  // A log with a gap is better than a hub that ends because somebody came while the disk was full.
  try {
    journal.add_event({now + clock_offset, rounds.closed(), member, what});
  } catch (const Error& error) {
    if (watcher.said) watcher.said(error.what());
  }
  if (watcher.said) watcher.said(member.empty() ? what : member + ": " + what);
}

double Hub::tick(double now) {
  double next = now + 5.0;
  impl_->guarded([&] {
    impl_->close_all_due(now);
    next = std::min(next, impl_->lost_members(now));
  });
  // They are in the order in which they began to wait.
  const auto& waiting = impl_->waiting;
  const auto first = [&] { return waiting.front().since + impl_->options.poll; };
  if (std::exchange(impl_->news, false) || (!waiting.empty() && first() <= now)) {
    impl_->answer_waiting(now, /*all=*/false);
  }
  if (!waiting.empty()) next = std::min(next, first());
  if (const auto look = impl_->rounds.next_look()) next = std::min(next, *look);
  return std::max(next, now + 0.001);
}

}  // namespace dgc::hub
