// What a member with a good token cannot do to the others.
#include <gtest/gtest.h>

#include <map>

#include "base/file.h"
#include "base/temporary_folder.h"
#include "dgc/version.h"
#include "hub/hub.h"
#include "toy.h"

namespace dgc {
namespace {

using hub::Bytes;
using hub::Hub;
using test::kToyModel;

class OneHub {
 public:
  explicit OneHub(hub::Terms terms) : terms_(terms) { start(); }

  void start() {
    hub_.reset();
    hub::HubPlan plan{.epochs = 1.0, .batch = 4};
    plan.pace = [](const auto&) { return hub::HubPlan::Pace{.lr = 0.1, .ratio = 0.1}; };
    hub_.emplace(
        folder_.path(), journal_, hub::HubOptions{.terms = terms_}, plan,
        hub::HubWatcher{.said = [this](const std::string& line) { said.push_back(line); }});
  }
  std::vector<std::string> said;
  std::map<std::string, std::string> sessions;
  std::string process;  // that joins

  /// The head of the answer; empty where the request waits.
  nlohmann::json post(const std::string& name, const std::string& path, nlohmann::json head,
                      const Bytes& blob = {}) {
    if (!tokens_.contains(name)) tokens_[name] = journal_.add_token(name, hub::Right::work, 0.0);
    if (sessions.contains(name)) head["session"] = sessions[name];
    const std::span<const std::byte> blobs[] = {blob};
    const hub::Request request{.method = "POST",
                               .path = path,
                               .query = {},
                               .token = tokens_[name],
                               .origin = "here",
                               .body = hub::write_packet(head, blobs)};
    nlohmann::json answer;
    hub_->give_up(hub_->handle(request, 1.0, [&](const hub::Response& response) {
      answer = hub::read_packet(*response.body).head;
      answer["status"] = response.status;
    }));
    if (answer.contains("session")) sessions[name] = answer["session"];
    return answer;
  }
  nlohmann::json join(const std::string& name, const std::vector<TensorSpec>& model,
                      bool alive = false) {
    return post(name, "/v1/join",
                {{"protocol", hub::kProtocol},
                 {"version", DGC_VERSION},
                 {"positions", 1000},
                 {"data", "d"},
                 {"model", hub::to_json(model)},
                 {"buffers", nlohmann::json::array()},
                 {"sequence", 0},
                 {"alive", alive},
                 {"process", process},
                 {"saved", nlohmann::json::array()}});
  }
  /// For parameters to begin with.
  void put(const Bytes& packet) {
    AtomicFile file(folder_ / hub::kInitialFile);
    file.write(packet);
    file.commit();
  }
  std::filesystem::path folder() const { return folder_.path(); }
  hub::Journal& journal() { return journal_; }
  hub::Hub& hub() { return *hub_; }
  void begin(const std::string& name) {
    ASSERT_EQ(join(name, kToyModel)["status"], 200);
    const Bytes parameters = hub::Replica(kToyModel, {}, terms_).snapshot();
    ASSERT_EQ(post(name, "/v1/initial", {}, parameters)["taken"], true);
  }

 private:
  hub::Terms terms_;
  TemporaryFolder folder_{"dgc-", test::fast_folder()};
  hub::Journal journal_{folder_ / "j", /*create=*/true};
  std::optional<Hub> hub_;
  std::map<std::string, std::string> tokens_;
};

nlohmann::json about(std::uint64_t sequence) {
  return {{"sequence", sequence}, {"have", 0},   {"saved", 0},     {"rtt", 0.1},     {"base", 0},
          {"examples", 4},        {"loss", 1.0}, {"seconds", 0.1}, {"residual", 1.0}};
}

TEST(HubLimits, AModelThatCannotBeginIsForgotten) {
  OneHub hub({.down = hub::Down::select});
  EXPECT_NE(hub.join("a", {kToyModel[0], kToyModel[0]})["status"], 200) << "two of one name";
  hub.start();
  hub.begin("b");
}

TEST(HubLimits, ARunThatIsNotWrittenDownDoesNotBegin) {
  OneHub hub({});
  ASSERT_EQ(hub.post("a", "/v1/join", {})["status"], 400);  // it has a token
  {
    hub::Database other(hub.folder() / "j", /*create=*/false);
    hub.journal().database().execute("PRAGMA busy_timeout=1");
    other.execute("BEGIN IMMEDIATE");
    EXPECT_EQ(hub.join("a", kToyModel)["status"], 503);
    other.execute("ROLLBACK");
  }
  hub.begin("a");
  hub.start();
  EXPECT_EQ(hub.join("a", kToyModel)["needs_parameters"], false);
}

TEST(HubLimits, ParametersToBeginWithAreTakenWhenTheDiskIsThereAgain) {
  OneHub hub({});
  std::vector<float> values(test::kToySize, 2.0f);
  const auto bytes = std::as_bytes(std::span(values));
  const std::span<const std::byte> blobs[] = {bytes.first(16 * 25 * 4), bytes.subspan(16 * 25 * 4)};
  hub.put(hub::write_packet({{"tensors", hub::to_json(kToyModel)}}, blobs));
  const auto in_the_way = hub.folder() / "round-000000000.snapshot" / "x";
  std::filesystem::create_directories(in_the_way);
  EXPECT_EQ(hub.join("a", kToyModel)["status"], 503);
  EXPECT_EQ(hub.join("a", kToyModel)["status"], 503);
  std::filesystem::remove_all(in_the_way.parent_path());
  EXPECT_EQ(hub.join("a", kToyModel)["needs_parameters"], false);
  EXPECT_EQ(hub.hub().replica()->parameters()[0][0], 2.0f);
}

TEST(HubLimits, NobodyGetsAllLeases) {
  OneHub hub({.save_every = 4});
  hub.begin("a");
  std::int64_t got = 0;
  for (std::uint64_t sequence = 1; sequence < 200; ++sequence) {
    const nlohmann::json answer = hub.post("a", "/v1/wait", about(sequence));
    if (answer.contains("lease")) got += answer["lease"]["count"].get<std::int64_t>();
  }
  EXPECT_GT(got, 0);
  EXPECT_LT(got, 200);
  ASSERT_EQ(hub.join("b", kToyModel)["status"], 200);
  EXPECT_EQ(hub.post("b", "/v1/wait", about(0))["lease"]["count"], 4);
}

TEST(HubLimits, ParametersStayFinite) {
  const hub::Terms terms{.momentum = 0.0f, .values = ValueType::fp32};
  OneHub hub(terms);
  hub.begin("a");
  for (const float value : {3e38f, 1e12f, 1.0f}) {
    State state(kToyModel, 0, 1, /*with_velocity=*/false);
    Compressor compressor(state, terms.member_options());
    compressor.change_schedule(Schedule(0.1));
    const std::vector<float> gradient(kToyModel[0].elements(), value);
    const Gradient gradients[] = {{0, gradient}};
    Bytes message(compressor.bound(gradients));
    message.resize(compressor.compress(gradients, message));
    const nlohmann::json answer = hub.post("a", "/v1/round", about(1), message);
    EXPECT_EQ(answer["status"], value > 1.0f ? 400 : 200) << value << answer;
  }
}

TEST(HubLimits, TheLogHasLinesOfOneLine) {
  OneHub hub({});
  hub.begin("a");
  auto head = about(0);
  head["round"] = 0;
  head["loss"] = 1.0;
  for (const char* name : {"two\nlines", "a\x1b[2J",
                           "b\xc2\x9b"
                           "2J",
                           "c\x7f"}) {
    head["metrics"] = nlohmann::json::array({nlohmann::json::array({name, 1.0})});
    EXPECT_EQ(hub.post("a", "/v1/evaluation", head)["status"], 400) << name;
    hub.hub().count_refused(name, name, 1.0);
    const std::vector<TensorSpec> model = {TensorSpec::of(name, {1ll << 40, 2})};
    EXPECT_EQ(hub.join(std::string(1, name[0]), model)["status"], 400) << name;
    EXPECT_EQ(hub.post("a", std::string("/v1/") + name, {})["status"], 404) << name;
  }
  hub.hub().count_refused("there", std::string(100'000, 'x'), 1.0);
  EXPECT_GT(hub.said.size(), 8u);
  for (const std::string& line : hub.said) {
    EXPECT_LT(line.size(), 1000u);
    EXPECT_EQ(line.find_first_of("\n\x1b\x7f"), line.npos) << line;
    EXPECT_EQ(line.find("\xc2\x9b"), line.npos) << line;
  }
}

TEST(HubLimits, LeasesComeBackFromAMemberThatTheJournalDidNotHave) {
  OneHub hub({.save_every = 1000});
  hub.begin("a");
  // It was a member before the hub was restored.
  ASSERT_EQ(hub.join("b", kToyModel, /*alive=*/true)["status"], 200);
  EXPECT_EQ(hub.post("b", "/v1/wait", about(0))["lease"]["count"], 4);
  hub.start();
  hub.hub().tick(1.0);
  EXPECT_EQ(hub.hub().leases()->taken(), 4);
  hub.hub().tick(1000.0);
  EXPECT_EQ(hub.hub().leases()->taken(), 0) << "it never came back";
}

TEST(HubLimits, OfTwoProcessesWithOneTokenTheNewOneGoesOn) {
  OneHub hub({});
  hub.begin("a");
  const auto join = [&](const std::string& process, bool alive) {
    hub.process = process;
    return hub.join("a", kToyModel, alive);
  };
  for (const bool alive : {false, false, true, true}) {  // as often as it takes
    EXPECT_EQ(join("one", alive)["status"], 200);
  }
  std::string session = hub.sessions["a"];
  EXPECT_EQ(join("two", /*alive=*/false)["status"], 200);
  EXPECT_EQ(hub.post("a", "/v1/wait", about(0))["status"], 200);
  std::swap(hub.sessions["a"], session);
  EXPECT_EQ(hub.post("a", "/v1/wait", about(0))["error"], "wrong_order");
  EXPECT_EQ(join("one", /*alive=*/true)["error"], "wrong_order");
  std::swap(hub.sessions["a"], session);
  EXPECT_EQ(hub.post("a", "/v1/wait", about(0))["status"], 200) << "it goes on";
  hub.start();
  EXPECT_EQ(join("two", /*alive=*/true)["status"], 200);
}

TEST(HubLimits, NumbersThatNoRunReaches) {
  OneHub hub({});
  hub.begin("a");
  for (const std::uint64_t number : {std::uint64_t{1} << 62, UINT64_MAX}) {
    EXPECT_EQ(hub.post("a", "/v1/wait", about(number))["status"], 400);
    nlohmann::json head = about(0);
    head["have"] = number;
    EXPECT_EQ(hub.post("a", "/v1/wait", head)["status"], 409);
  }
  EXPECT_EQ(hub.post("a", "/v1/wait", about(0))["status"], 200);
}

}  // namespace
}  // namespace dgc
