// What the hub answers to requests that no member of ours would send.
#include <gtest/gtest.h>

#include "base/temporary_folder.h"
#include "dgc/version.h"
#include "hub/hub.h"

namespace dgc {
namespace {

using hub::Hub;

TEST(HubRequests, CommitsAfterARoundThatIsFarAway) {
  const TemporaryFolder folder;
  hub::Journal journal(folder.path() / hub::kJournalFile, /*create=*/true);
  Hub hub(folder.path(), journal, {}, {}, {});
  hub::Request request{.method = "GET", .path = "/v1/commits", .origin = "here"};
  request.token = journal.add_token("somebody", hub::Right::work, 0.0);
  for (const char* after : {"0", "7", "18446744073709551615"}) {
    request.query = std::string("after=") + after;
    hub.handle(request, 1.0, [&](const hub::Response& response) {
      EXPECT_EQ(response.status, 200) << after;
      const hub::Packet packet = hub::read_packet(*response.body);
      EXPECT_TRUE(packet.blobs.empty()) << after;
      EXPECT_EQ(packet.head.at("round"), 0) << after;
    });
  }
}

class Joining : public testing::Test {
 protected:
  /// The answer to a member that joins with this model.
  nlohmann::json join(const std::vector<TensorSpec>& model,
                      const std::vector<TensorSpec>& buffers) {
    nlohmann::json said;
    hub::Request request = asked("POST", "/v1/join", hub::Right::work);
    request.body = hub::write_packet({{"protocol", hub::kProtocol},
                                      {"version", DGC_VERSION},
                                      {"positions", 10},
                                      {"data", "ten"},
                                      {"model", hub::to_json(model)},
                                      {"buffers", hub::to_json(buffers)},
                                      {"sequence", 0},
                                      {"alive", false},
                                      {"saved", nlohmann::json::array()}});
    return answer(request);
  }
  hub::Request asked(const std::string& method, const std::string& path, hub::Right right) {
    hub::Request request{.method = method, .path = path, .origin = "here"};
    request.token = journal_.add_token(std::string(name_of(right)), right, 0.0);
    return request;
  }
  nlohmann::json answer(const hub::Request& request) {
    nlohmann::json said;
    hub_.handle(request, 1.0, [&](const hub::Response& response) {
      said = hub::read_packet(*response.body).head;
    });
    return said;
  }

 private:
  TemporaryFolder folder_;
  hub::Journal journal_{folder_.path() / hub::kJournalFile, /*create=*/true};
  Hub hub_{folder_.path(), journal_, {}, {}, {}};
};

TEST_F(Joining, AnotherModelIsRefusedWithItsFirstDifference) {
  const std::vector<TensorSpec> model = {TensorSpec::of("a", {2, 3}), TensorSpec::of("b", {4, 5})};
  const std::vector<TensorSpec> buffers = {TensorSpec::of("mean", {4})};
  EXPECT_FALSE(join(model, buffers).contains("error"));
  auto other = model;
  other[1] = TensorSpec::of("b", {4, 6});
  EXPECT_EQ(join(other, buffers).value("problem", ""),
            "as tensor 1 the run has 'b' of 4x5, the member has 'b' of 4x6");
  other.pop_back();
  EXPECT_EQ(join(other, buffers).value("problem", ""),
            "as tensor 1 the run has 'b' of 4x5, the member has none");
  const nlohmann::json said = join(model, {});
  EXPECT_EQ(said.value("subject", ""), "buffers");
  EXPECT_EQ(said.value("problem", ""),
            "as tensor 0 the run has 'mean' of 4, sent whole, the member has none");
}

TEST_F(Joining, ATokenIsToldWhatItIsFor) {
  for (const hub::Right right : {hub::Right::work, hub::Right::invite, hub::Right::read}) {
    EXPECT_EQ(answer(asked("GET", "/v1/run", right)).value("right", ""), name_of(right));
  }
}

}  // namespace
}  // namespace dgc
