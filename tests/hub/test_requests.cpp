// What the hub answers to requests that no member of ours would send.
#include <gtest/gtest.h>

#include "base/temporary_folder.h"
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

}  // namespace
}  // namespace dgc
