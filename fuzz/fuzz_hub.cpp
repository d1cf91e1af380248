// A hub gets any requests at any times. It answers each, now or later; what it has written down is
// enough to go on.
//
// An input is a list of steps: what to do (8 bits), lengths of a head and of a byte string (16 bits
// each), then those. In a head the session "S" stands for the one that the hub gave last.
#include "base/temporary_folder.h"
#include "hub/hub.h"
#include "support.h"

namespace {

using namespace dgc;
using fuzz::require;
using hub::Bytes;
using hub::Hub;

const std::vector<const char*> kPaths = {
    "/v1/join",   "/v1/initial", "/v1/round",    "/v1/wait",   "/v1/leave", "/v1/evaluation",
    "/v1/enroll", "/v1/commits", "/v1/snapshot", "/v1/status", "/metrics",  "/v1/run"};
constexpr std::uint8_t kTime = 200, kLost = 201, kRestart = 202;

class Run {
 public:
  explicit Run(fuzz::Input input) : input_(input), select_(input_.take<std::uint8_t>() % 2 == 1) {
    for (const auto& [name, right] : {std::pair{"a", hub::Right::work},
                                      {"b", hub::Right::work},
                                      {"invite", hub::Right::invite},
                                      {"read", hub::Right::read}}) {
      tokens_.push_back(journal_.add_token(name, right, 0.0));
    }
    tokens_.emplace_back("a.0");
    start();
  }

  void all() {
    for (int steps = 0; steps < 64 && !input_.empty(); ++steps) step();
    hub_->status(now_);
    hub_->metrics(now_);
    restart();
  }

 private:
  void start() {
    hub::HubOptions options{.terms = {.down = select_ ? hub::Down::select : hub::Down::forward,
                                      .momentum = 0.0f,
                                      .check_every = 1},
                            .norm_bound = 2.0,
                            .most_parameters = 1000};
    hub::HubPlan plan{.epochs = 3.0, .batch = 4, .snapshot_every = 3};
    plan.pace = [](const auto&) { return hub::HubPlan::Pace{.lr = 0.1, .ratio = 0.2}; };
    hub_.emplace(folder_.path(), journal_, options, plan, hub::HubWatcher{});
  }
  void restart() {
    const bool had = !journal_.snapshots().empty();
    const std::uint64_t round = hub_->round();
    const std::uint64_t hash = had ? hub_->replica()->hash() : 0;
    hub_->give_up_all();
    hub_.reset();
    start();
    require(hub_->round() == round, "all rounds are in the journal");
    require(!had || hub_->replica()->hash() == hash, "parameters follow from the commits");
  }
  std::vector<std::byte> bytes(std::size_t size) {
    std::vector<std::byte> out;
    for (std::size_t i = 0; i < size && !input_.empty(); ++i)
      out.push_back(input_.take<std::byte>());
    return out;
  }

  void step() {
    const auto what = input_.take<std::uint8_t>();
    const auto head_size = input_.take<std::uint16_t>();
    const auto blob_size = input_.take<std::uint16_t>();
    const std::vector<std::byte> head = bytes(head_size);
    const std::vector<std::byte> blob = bytes(blob_size);
    now_ += 0.001;
    if (what == kTime) now_ += static_cast<double>(head_size) / 64.0;
    if (what == kLost) hub_->connection_lost(session_, now_);
    if (what == kRestart) restart();
    if (what < kTime) send(what, {reinterpret_cast<const char*>(head.data()), head.size()}, blob);
    const double next = hub_->tick(now_);
    require(next > now_, "there is a next time to look");
  }

  void send(std::uint8_t what, const std::string& text, std::vector<std::byte> blob) {
    hub::Request request{.path = kPaths[what % kPaths.size()],
                         .token = tokens_[what / kPaths.size() % tokens_.size()],
                         .origin = "fuzz"};
    const bool post = what % kPaths.size() < 7;
    request.method = post ? "POST" : "GET";
    nlohmann::json head = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!post) {
      request.query = text;
    } else if (head.is_discarded()) {
      request.body = std::move(blob);
    } else {
      if (head.is_object() && head.value("session", nlohmann::json()) == "S") {
        head["session"] = session_;
      }
      std::vector<std::byte> repaired = blob;
      fuzz::fix_checksum(repaired);
      const std::span<const std::byte> blobs[] = {repaired};
      request.body = hub::write_packet(head, blobs);
    }
    hub_->body_limit(request);
    bool answered = false;
    const std::uint64_t waits = hub_->handle(request, now_, [&](const hub::Response& response) {
      answered = true;
      require(response.body != nullptr && response.status >= 200, "an answer has a body");
      if (request.path != "/v1/join" || response.status != 200) return;
      session_ = hub::text(hub::read_packet(*response.body).head, "session");
    });
    require(answered == (waits == 0), "there is an answer, now or later");
    if (waits != 0) hub_->give_up(waits);
  }

  fuzz::Input input_;
  bool select_;
  const TemporaryFolder folder_{"dgc-fuzz-"};
  hub::Journal journal_{":memory:", /*create=*/true};
  std::vector<std::string> tokens_;
  std::optional<Hub> hub_;
  std::string session_;
  double now_ = 1.0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Run(fuzz::Input({data, size})).all();
  return 0;
}
