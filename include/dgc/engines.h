// Groups across processes and machines: shared memory, Gloo over TCP, MPI under mpirun, and the
// choice between them. Callers compile the same whichever of them this build has.
#pragma once

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dgc/group.h"
#include "dgc/link.h"

namespace dgc {

/// Where the processes of a group find each other, and where a rank that gives up leaves its cause:
/// a small map from keys to bytes that all of them see. Keys are of letters, digits, '.', '_', '-'
/// and '/'. Implementations throw Error(io) when the map cannot be reached. Used by one thread at a
/// time for each group.
class RendezvousStore {
 public:
  virtual ~RendezvousStore() = default;

  /// Others see the whole value or none of it.
  virtual void set(const std::string& key, std::span<const std::byte> value) = 0;
  /// Waits until the key exists; nothing when it does not within `timeout`.
  virtual std::optional<std::vector<std::byte>> get(const std::string& key,
                                                    std::chrono::milliseconds timeout) = 0;
  /// Does not wait.
  virtual std::optional<std::vector<std::byte>> try_get(const std::string& key) = 0;
  /// Forgets a key, if the map can.
  virtual void remove(const std::string& key) noexcept = 0;
  /// Whether anybody in the network can read and write it.
  virtual bool is_open_to_strangers() const { return false; }
};

/// A store in a folder that all ranks see, such as /tmp/job-17 on one machine or a network file
/// system for several. The folder must exist, and stays; what groups write to it is gone when all
/// their ranks have closed. A run that was killed leaves files behind, so every run needs a folder
/// (or GlooOptions::name) of its own. Throws Error(io) when it is not a folder.
std::shared_ptr<RendezvousStore> make_file_store(const std::filesystem::path& folder);

struct GlooOptions {
  int rank = 0;
  int size = 1;
  /// Network interface, e.g. "eth0"; wins over hostname. Several machines usually need it: on many
  /// systems the own hostname is a loopback address, and then making the group fails at once.
  std::string interface = {};
  /// Own name or address to listen on. "": this machine's name if it resolves, else 127.0.0.1.
  std::string hostname = {};
  std::chrono::milliseconds timeout = kDefaultTimeout;
  /// What host() returns; "": this_host().
  std::string host_id = {};
  /// Keys in the store begin with it. The same on all ranks, and a new one for each group that uses
  /// the same store at the same time or after a failure.
  std::string name = "dgc";
  /// What all ranks know and nobody else. "": DGC_SECRET; and where that is not set, none. With a
  /// secret nobody else can join the group or keep it from meeting.
  std::string secret = {};
};

/// This process as one rank of a group over TCP, each connected with each. Returns when all ranks
/// have come; takes at most twice the timeout. A group of one needs neither store nor network. The
/// store is kept until the group is destroyed, which does not wait for other ranks.
///
/// Each connection proves that it has the secret before it counts. What is sent afterwards is not
/// encrypted: docs/multi-node.md says what is protected. Throws Error: invalid_argument (also when
/// a peer has another secret), io (store), timeout or peer_lost naming the rank that is missing,
/// peer_failed, engine_unavailable.
std::unique_ptr<Group> make_gloo_group(std::shared_ptr<RendezvousStore> store,
                                       const GlooOptions& options);

/// Whether others than the processes of this machine can reach the group's rendezvous, and it has
/// no secret. False for engines that have none.
bool is_open_to_strangers(const Group& group) noexcept;

struct SharedOptions {
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout = kDefaultTimeout;
  /// What host() returns; "": this_host().
  std::string host_id = {};
  /// Keys in the store begin with it; as GlooOptions::name.
  std::string name = "dgc";
};

/// This process as one rank of a group of processes of one machine and one user, through shared
/// memory. Returns when all ranks have come. A group of one needs no store; the store is not used
/// any more when this returns. Only processes that may look at each other in /proc can meet.
/// Nothing is left behind, however ranks end. Throws Error: invalid_argument (also for a rank on
/// another machine), io, timeout or peer_lost naming the rank that is missing, peer_failed.
std::unique_ptr<Group> make_shared_group(std::shared_ptr<RendezvousStore> store,
                                         const SharedOptions& options);

/// All processes of an mpirun as a group. All of them call it at the same time. MPI is initialised
/// unless it already is, and finalised at exit only if it was initialised here: a caller that uses
/// MPI itself keeps it. MPI needs MPI_THREAD_SERIALIZED if groups are used by more than one thread.
///
/// Open MPI ends the whole job when a rank dies, so peer_lost is rarely seen: what remains then is
/// the last checkpoint. After an exchange that failed, MPI may still hold its buffers: end the
/// process soon. Throws Error: timeout, peer_lost, engine_unavailable (also after such a failure).
std::unique_ptr<Group> make_mpi_group(std::chrono::milliseconds timeout = kDefaultTimeout,
                                      const std::string& host_id = {});

/// `group` as it would be over a slower network: each rank behind a link of its own, on which
/// messages queue, take the delay, and need permission as Gloo's do. For tests, demonstrations and
/// questions such as "what would my network do". The ranks have to be threads or processes of one
/// machine, and all have to give the same link. engine() then says that a link is emulated.
/// Results, errors and traffic() are those of `group`; a message that the link is too slow for is a
/// timeout. Throws Error(invalid_argument) for a bandwidth or delay that cannot be.
std::unique_ptr<Group> make_emulated_link(std::unique_ptr<Group> group, const Link& link);

/// The engines of this build, of "local", "shared", "gloo", "mpi".
std::vector<std::string> engines();

/// What the process was started for: "mpi" inside mpirun (OMPI_COMM_WORLD_SIZE is set); with RANK
/// and WORLD_SIZE what DGC_ENGINE says ("shared" or "gloo"), "gloo" where it is not set; else
/// "local". Says nothing about whether this build has it. Throws Error(invalid_argument) for
/// another DGC_ENGINE.
std::string engine_from_environment();

/// The text that identifies this machine: DGC_HOST_ID, else its host name.
std::string this_host();

/// This process's group by the name of an engine, or "auto": engine_from_environment(). "local" is
/// a group of one. "shared" and "gloo" read RANK, WORLD_SIZE, gloo also DGC_INTERFACE and
/// DGC_SECRET if they are set. They meet the others in `store` or, where that is null, in DGC_STORE
/// (folder for make_file_store), or at MASTER_ADDR and MASTER_PORT (dgc/address_store.h). Throws
/// Error: invalid_argument for an unknown engine or a bad variable, engine_unavailable for one that
/// is not in this build, and what the engine throws.
std::unique_ptr<Group> make_group(const std::string& engine = "auto",
                                  std::chrono::milliseconds timeout = kDefaultTimeout,
                                  std::shared_ptr<RendezvousStore> store = nullptr);

}  // namespace dgc
