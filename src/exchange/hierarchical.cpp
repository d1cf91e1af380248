// Dense inside a host, sparse between hosts.
//
// Workers of a host average their gradients densely (reduce-scatter); each compresses its share of
// every tensor and exchanges it with its counterparts on the other hosts; the messages of all
// shares are then handed round inside the host. For the algorithm N is the number of hosts:
// clipping and 1/N go by it. (The paper has one level of workers.) The rest of the code knows
// algorithms of this kind by shares.h.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "dgc/collectives.h"
#include "exchange/parcels.h"
#include "exchange/shares.h"

namespace dgc::exchange {

bool in_shares(Algorithm algorithm) noexcept { return algorithm == Algorithm::hierarchical; }

std::optional<Topology> find_topology(Group& group, const ExchangeOptions& options) {
  if (!in_shares(options.algorithm)) return std::nullopt;
  return find_topology(group, options.host);
}

Topology find_topology(Group& group, const std::string& host_override) {
  const std::string host = host_override.empty() ? group.host() : host_override;
  std::vector<std::string> names;
  for (const auto& bytes : all_gather(group, std::as_bytes(std::span(host)), 1 << 16)) {
    names.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  std::map<std::string, std::vector<int>> by_host;
  std::vector<std::string> order;  // hosts by their first rank
  for (int rank = 0; rank < group.size(); ++rank) {
    auto& ranks = by_host[names[static_cast<std::size_t>(rank)]];
    if (ranks.empty()) order.push_back(names[static_cast<std::size_t>(rank)]);
    ranks.push_back(rank);
  }
  Topology topology;
  topology.hosts = static_cast<int>(order.size());
  topology.local = by_host[names[static_cast<std::size_t>(group.rank())]];
  topology.local_size = static_cast<int>(topology.local.size());
  topology.local_rank =
      static_cast<int>(std::find(topology.local.begin(), topology.local.end(), group.rank()) -
                       topology.local.begin());
  for (std::size_t h = 0; h < order.size(); ++h) {
    const std::vector<int>& ranks = by_host[order[h]];
    if (ranks.size() != topology.local.size()) {
      throw Error(ErrorCode::configuration_mismatch, "topology",
                  fmt::format("host of rank {}", ranks[0]),
                  fmt::format("has {} workers, the host of rank {} has {}", ranks.size(),
                              topology.local[0], topology.local.size()),
                  "the hierarchical algorithm needs the same number on every host");
    }
    if (ranks[static_cast<std::size_t>(topology.local_rank)] == group.rank())
      topology.host = static_cast<int>(h);
    topology.counterparts.push_back(ranks[static_cast<std::size_t>(topology.local_rank)]);
  }
  return topology;
}

std::vector<TensorSpec> share_of(const std::vector<TensorSpec>& model, const Topology& topology) {
  std::vector<TensorSpec> shares;
  for (const TensorSpec& tensor : model) {
    const Range range = part_of(tensor.elements(), topology.local_size, topology.local_rank);
    shares.push_back({fmt::format("{}[{}:{}]", tensor.name, range.begin, range.end),
                      {static_cast<std::int64_t>(range.size())},
                      tensor.dense});
  }
  return shares;
}

namespace {

/// Most bytes of the message of a share of these tensors. The first worker has the largest.
std::uint64_t share_bound(const Context& context, std::span<const Gradient> gradients,
                          int workers) {
  std::uint64_t frames = 0;
  const double ratio = context.compressor.options().schedule.ratio_at(
      static_cast<std::int64_t>(context.state.step()));
  for (const Gradient& gradient : gradients) {
    const std::uint64_t elements = part_of(gradient.values.size(), workers, 0).size();
    const bool whole = context.model[gradient.tensor].dense;
    const Load load{elements, whole ? elements : entries_at(ratio, elements)};
    frames += frame_bound(
        elements, load.entries, context.values_of(load),
        load.entries == elements ? IndexCoding::automatic : context.compressor.options().indices);
  }
  return parcel_bound(context.model.size(), frames);
}

}  // namespace

void run_shares(Context& context, const Topology& topology, Task& task, Contents& contents) {
  const std::vector<Gradient>& gradients = task.gradients;
  const auto local = make_subgroup(context.group, topology.local);
  const auto across = make_subgroup(context.group, topology.counterparts);
  const int workers = topology.local_size;

  // Reduce-scatter: the local worker r gets everybody's part r of every tensor. Parts of a tensor
  // differ by an element at most.
  std::size_t share_elements = gradients.size();
  for (const Gradient& gradient : gradients) {
    share_elements += gradient.values.size() / static_cast<std::size_t>(workers);
  }
  std::vector<std::vector<float>> outgoing(static_cast<std::size_t>(workers));
  for (int r = 0; r < workers; ++r) {
    for (const Gradient& gradient : gradients) {
      const Range range = part_of(gradient.values.size(), workers, r);
      const auto part = gradient.values.subspan(range.begin, range.size());
      auto& out = outgoing[static_cast<std::size_t>(r)];
      if (out.empty()) out.reserve(share_elements);
      out.insert(out.end(), part.begin(), part.end());
    }
  }
  std::vector<float> mean(outgoing[static_cast<std::size_t>(topology.local_rank)].size(), 0.0f);
  {
    const PhaseMeter meter(context.group, contents, "reduce inside the host");
    std::vector<std::span<const std::byte>> parts;
    for (const auto& out : outgoing) parts.push_back(std::as_bytes(std::span(out)));
    const auto received = all_to_all(*local, parts, share_elements * sizeof(float));
    for (int r = 0; r < workers; ++r) {
      const auto& bytes = received[static_cast<std::size_t>(r)];
      if (bytes.size() != mean.size() * sizeof(float)) {
        throw Error(
            ErrorCode::bad_length, "reduce inside the host",
            fmt::format("rank {}", topology.local[static_cast<std::size_t>(r)]),
            fmt::format("sent {} bytes, {} expected", bytes.size(), mean.size() * sizeof(float)));
      }
      std::vector<float> theirs(mean.size());
      if (!bytes.empty()) std::memcpy(theirs.data(), bytes.data(), bytes.size());
      for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += theirs[i];
    }
    for (float& x : mean) x /= static_cast<float>(workers);
  }

  std::vector<Gradient> shares;
  std::size_t begin = 0;
  for (const Gradient& gradient : gradients) {
    const std::size_t size = context.state.tensors()[gradient.tensor].elements();
    shares.push_back({gradient.tensor, std::span(mean).subspan(begin, size)});
    begin += size;
  }
  // Clipping is over the whole gradient, of which this worker has a share: add up the squares.
  const std::uint64_t bound = share_bound(context, gradients, workers);
  Task share{.notice = task.notice,
             .gradients = std::move(shares),
             .call = {.scale = task.call.scale},
             .rounds = Rounds({bound})};
  if (context.compressor.options().clip_norm > 0.0) {
    const double mine = context.compressor.norm(share.gradients);
    double squares = 0.0;
    for (const auto& bytes : all_gather(*local, std::as_bytes(std::span(&mine, 1)), sizeof mine)) {
      double theirs = 0.0;
      if (bytes.size() == sizeof theirs) std::memcpy(&theirs, bytes.data(), sizeof theirs);
      squares += theirs * theirs;
    }
    share.call.norm = std::sqrt(squares);
  }
  Context inside{*across,         context.model, context.state, context.compressor,
                 context.options, context.costs};
  Contents part;
  run_allgather(inside, share, share.gradients, {}, part);
  contents.message_bytes += part.message_bytes;
  contents.sparse = gradients.size();
  for (Phase& phase : part.phases) {
    phase.name = "allgather between hosts";
    contents.phases.push_back(std::move(phase));
  }

  // Hand the messages of this share to the local workers, as they came. Their shares differ from
  // ours by an element at most, but that has to be right.
  for (std::size_t h = 0; h < part.messages.size(); ++h) {
    for (int r = 0; r < workers; ++r) {
      auto& offsets = contents.offsets.emplace_back(context.model.size());
      for (const Gradient& gradient : gradients) {
        offsets[gradient.tensor] = part_of(gradient.values.size(), workers, r).begin;
      }
    }
    const PhaseMeter meter(context.group, contents, "gather inside the host");
    const auto parcels = local->swap(part.messages[h].message.bytes(), bound);
    for (int r = 0; r < workers; ++r) {
      RoundSpec spec{.phase = "gather inside the host", .notice = task.notice, .tensors = {}};
      for (const Gradient& gradient : gradients) {
        spec.tensors.push_back(
            {gradient.tensor, part_of(gradient.values.size(), workers, r).size()});
      }
      contents.messages.push_back(check_parcel(context, spec, static_cast<int>(h),
                                               topology.local[static_cast<std::size_t>(r)],
                                               parcels[static_cast<std::size_t>(r)]));
    }
  }
}

double shares_bytes(double message, double elements, int workers, int hosts) noexcept {
  const double n = workers;
  const double h = hosts;
  const double l = n / h;
  return (n - 1) * (kEmptyMessage + kLengthBytes) + (l - 1) * (4.0 * elements / l + kLengthBytes) +
         (h - 1 + h * (l - 1)) * (message + kLengthBytes);
}

double shares_messages(int workers, int hosts) noexcept {
  const double n = workers;
  const double h = hosts;
  const double l = n / h;
  return n - 1 + 2.0 * ((l - 1) + (h - 1) + h * (l - 1));
}

}  // namespace dgc::exchange
