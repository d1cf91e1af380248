// Requests come in here, and are given to whom they concern: coming and going (hub_join.cpp),
// rounds (hub_reply.cpp), figures (hub_status.cpp). docs/hub.md specifies them.
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

/// Numbers of messages stay below this: one more is a number, too, and SQLite knows it.
constexpr std::uint64_t kMostMessages = std::uint64_t{1} << 62;
constexpr std::size_t kSmallBody = std::size_t{64} << 10;
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

/// What strangers and members have put into it (a path, the name of a tensor) is no second line of
/// the log, moves no cursor of a terminal, and fills no disk.
std::string one_line(std::string text) {
  constexpr std::size_t kLongest = 500;
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (is_control(text, i)) text[i] = '?';
  }
  return text;
}

}  // namespace

bool is_control(std::string_view text, std::size_t at) {
  const auto byte = static_cast<unsigned char>(text[at]);
  if (byte < 0x20 || byte == 0x7f) return true;
  // U+0080 to U+009F, of which terminals know some, too.
  const auto next = at + 1 < text.size() ? static_cast<unsigned char>(text[at + 1]) : 0;
  return byte == 0xc2 && next >= 0x80 && next < 0xa0;
}

std::uint64_t message_number(const nlohmann::json& head) {
  const std::uint64_t sequence = whole_number(head, "sequence");
  if (sequence >= kMostMessages) {
    throw Error(ErrorCode::invalid_argument, "hub", "sequence", "is no number of a message");
  }
  return sequence;
}

void refuse(ErrorCode code, const std::string& subject, const std::string& what,
            const std::string& hint) {
  throw Error(code, "hub", subject, what, hint);
}

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
  if (!journal.fact("run")) journal.set_fact("run", detail::new_secret());
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
  const auto& model = impl_->replica->model();
  const std::uint64_t elements =
      impl_->replica->buffers().size() + elements_of(model) + 64 * model.size();
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

void Hub::Impl::note(const std::string& member, const std::string& event, double now) {
  const std::string what = one_line(event);
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
