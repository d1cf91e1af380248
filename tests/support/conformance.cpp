#include "support/conformance.h"

#include <fmt/format.h>

#include <cstring>
#include <stdexcept>

#include "dgc/collectives.h"
#include "support/samples.h"

namespace dgc::test {
namespace {

void expect(bool ok, const char* what, std::size_t size) {
  if (!ok) throw std::runtime_error(fmt::format("{} of size {}", what, size));
}

std::vector<std::byte> pattern(int from, int to, std::size_t size) {
  Lcg random(static_cast<std::uint64_t>(from * 1000 + to) * 7919 + size);
  std::vector<std::byte> bytes(size);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random.next());
  return bytes;
}

const std::size_t kSizes[] = {0, 1, 3, 255, 4096, 65'537, 1'000'003};

void check_all_gather(Group& group) {
  for (const std::size_t size : kSizes) {
    // Every rank another size; rank 0 sometimes nothing.
    const auto of = [&](int rank) {
      return pattern(rank, 0, size * static_cast<std::size_t>(rank) / 2 + (size > 4096 ? 1 : 0));
    };
    const Traffic before = group.traffic();
    const auto all = all_gather(group, of(group.rank()));
    expect(all.size() == static_cast<std::size_t>(group.size()), "all_gather", size);
    std::uint64_t received = 0;
    for (int r = 0; r < group.size(); ++r) {
      expect(all[static_cast<std::size_t>(r)] == of(r), "all_gather", size);
      if (r != group.rank()) received += of(r).size() + 8;
    }
    expect((group.traffic() - before).bytes_received == received, "all_gather counts its bytes",
           size);
  }
}

bool same(const Parcel& parcel, const std::vector<std::byte>& expected) {
  return std::equal(parcel.bytes.begin(), parcel.bytes.end(), expected.begin(), expected.end());
}

/// Every rank another size, with room made for the next call or not, and other messages between.
void check_swap(Group& group) {
  const auto peers = static_cast<std::uint64_t>(group.size() - 1);
  for (const std::size_t size : kSizes) {
    for (const std::size_t next : {std::size_t{0}, size, size / 2 + 1, 2 * size}) {
      const auto of = [&](int rank) {
        return pattern(
            rank, 1,
            size * static_cast<std::size_t>(rank + 1) / static_cast<std::size_t>(group.size()));
      };
      const Traffic before = group.traffic();
      const std::uint64_t following[] = {next, next / 2 + 1};
      const auto all = group.swap(of(group.rank()), size, std::span(following).first(next % 3));
      const Traffic moved = group.traffic() - before;
      expect(all.size() == static_cast<std::size_t>(group.size()), "swap", size);
      std::uint64_t received = 0;
      for (int r = 0; r < group.size(); ++r) {
        expect(same(all[static_cast<std::size_t>(r)], of(r)), "swap", size);
        if (r != group.rank()) received += of(r).size() + 8;
      }
      expect(moved.bytes_received == received, "swap counts its bytes", size);
      expect(moved.messages_sent == peers || moved.messages_sent == 2 * peers,
             "swap counts its messages", size);
      if (size == 255) barrier(group);
    }
  }
  // Room as needed: one message to each, time after time.
  const std::uint64_t enough[] = {1'000'003, 1'000'003};
  group.swap(std::span<const std::byte>{}, 0, enough);
  group.swap(std::span<const std::byte>{}, 0, enough);
  for (int i = 0; i < 5; ++i) {
    const Traffic before = group.traffic();
    group.swap(pattern(group.rank(), i, 1000), 1'000'003, enough);
    expect((group.traffic() - before).messages_sent == peers, "swap in one message", 1000);
  }
  // Another message to each rank.
  for (const std::size_t size : kSizes) {
    const auto from_to = [&](int from, int to) { return pattern(from, to, size); };
    std::vector<std::vector<std::byte>> mine;
    for (int r = 0; r < group.size(); ++r) mine.push_back(from_to(group.rank(), r));
    const std::vector<std::span<const std::byte>> outgoing(mine.begin(), mine.end());
    const auto all = group.swap(outgoing, size);
    for (int r = 0; r < group.size(); ++r) {
      expect(same(all[static_cast<std::size_t>(r)], from_to(r, group.rank())), "swap to each",
             size);
    }
  }
}

void check_all_to_all(Group& group) {
  for (const std::size_t size : kSizes) {
    std::vector<std::vector<std::byte>> parts;
    std::vector<std::span<const std::byte>> spans;
    for (int to = 0; to < group.size(); ++to)
      parts.push_back(pattern(group.rank(), to, size / 4 + static_cast<std::size_t>(to)));
    for (const auto& part : parts) spans.emplace_back(part);
    const auto all = all_to_all(group, spans);
    for (int from = 0; from < group.size(); ++from) {
      expect(all[static_cast<std::size_t>(from)] ==
                 pattern(from, group.rank(), size / 4 + static_cast<std::size_t>(group.rank())),
             "all_to_all", size);
    }
  }
}

void check_broadcast(Group& group) {
  for (const std::size_t size : kSizes) {
    for (int root = 0; root < group.size(); ++root) {
      auto bytes = group.rank() == root ? pattern(root, root, size) : std::vector<std::byte>(size);
      broadcast(group, bytes, root);
      expect(bytes == pattern(root, root, size), "broadcast", size);
    }
  }
}

void check_all_reduce(Group& group) {
  for (const std::size_t size : {0, 1, 5, 7, 64, 1000, 100'003}) {
    const auto of = [&](int rank) {
      Lcg random(static_cast<std::uint64_t>(rank) + size);
      std::vector<float> values(size);
      // Thirds fill the mantissa, so that the order of addition shows.
      for (float& x : values) x = random.value() / 3.0f;
      return values;
    };
    // In the order of the ranks: any other order gives other bits.
    std::vector<float> expected = of(0);
    for (int r = 1; r < group.size(); ++r) {
      const auto more = of(r);
      for (std::size_t i = 0; i < size; ++i) expected[i] += more[i];
    }
    std::vector<float> actual = of(group.rank());
    all_reduce(group, actual);
    expect(size == 0 || std::memcmp(actual.data(), expected.data(), size * sizeof(float)) == 0,
           "all_reduce", size);
  }
}

void check_subgroups(Group& group) {
  // Even and odd ranks, each a group of its own, at the same time.
  std::vector<int> members;
  for (int r = group.rank() % 2; r < group.size(); r += 2) members.push_back(r);
  const auto half = make_subgroup(group, members);
  const std::byte mine{static_cast<unsigned char>(group.rank())};
  const auto all = all_gather(*half, {&mine, 1});
  for (std::size_t i = 0; i < members.size(); ++i) {
    expect(all[i].size() == 1 && all[i][0] == std::byte{static_cast<unsigned char>(members[i])},
           "subgroup", i);
  }
}

void check_misuse(Group& group) {
  const std::byte byte{0};
  for (const int peer : {-1, group.size(), group.rank()}) {
    const Outgoing send{peer, {&byte, 1}};
    try {
      group.exchange({&send, 1}, {});
    } catch (const Error& error) {
      expect(error.code() == ErrorCode::invalid_argument, "a peer that does not exist", 0);
      continue;
    }
    expect(false, "a peer that does not exist", 0);
  }
}

}  // namespace

void check_conformance(Group& group) {
  barrier(group);
  check_all_gather(group);
  check_swap(group);
  check_all_to_all(group);
  check_broadcast(group);
  check_all_reduce(group);
  check_subgroups(group);
  check_misuse(group);
  barrier(group);
}

}  // namespace dgc::test
