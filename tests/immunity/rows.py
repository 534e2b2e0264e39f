"""The rows of the immunity suite: which attack, which rules, and the tests that stand for them.

Names are node ids below tests/, without parameters; `test_rows.py` checks that each exists. Rows
and rules are numbered as in the security plan of the project.
"""

from __future__ import annotations

from dataclasses import dataclass

IMAGES = "kernel/test_bad_images.py"
STATE = "kernel/test_bad_state.py"
STAGE = "kernel/test_bad_stage.py"
DEVICES = "kernel/test_devices.py"
PATHS = "immunity/test_paths.py"
PROCESS = "immunity/test_process.py"
RACES = "immunity/test_races.py"
REQUESTS = "immunity/test_requests.py"


@dataclass(frozen=True, slots=True)
class Row:
    """One attack: `name` in the plan, what the attacker does, and the tests."""

    name: str
    attack: str
    tests: tuple[str, ...]


def _row(name: str, attack: str, *tests: str) -> Row:
    return Row(name, attack, tests)


ROWS = (
    _row(
        "T-0132a",
        "compat library by way of another process's directory (CVE-2024-0132)",
        f"{PATHS}::test_files_of_the_image_are_no_sources",
    ),
    _row(
        "T-0132b",
        "compat entry that, once mounted, changes the next one (CVE-2024-0132)",
        f"{PATHS}::test_files_of_the_image_are_no_sources",
    ),
    _row(
        "T-0132c",
        "compat and library directories, and driver names, as links (CVE-2025-23359)",
        f"{PATHS}::test_files_of_the_image_are_no_sources",
        f"{PATHS}::test_directory_is_a_magic_link",
        f"{IMAGES}::test_directory_is_a_link",
    ),
    _row(
        "T-0132d",
        "a second container exchanges directory and link (CVE-2024-0132, CVE-2021-30465)",
        f"{RACES}::test_directory_becomes_a_link",
        f"{RACES}::test_target_becomes_a_link",
    ),
    _row(
        "T-0133",
        "a parent of a target is a link (CVE-2024-0133, CVE-2024-45310)",
        f"{PATHS}::test_parent_is_a_link",
        f"{IMAGES}::test_directory_is_a_link",
        f"{IMAGES}::test_links_inside_the_root_are_followed",
    ),
    _row(
        "T-0134",
        "links below links, odd link texts (CVE-2024-0134)",
        f"{PATHS}::test_link_into_a_link",
        f"{PATHS}::test_odd_link_text",
        f"{IMAGES}::test_directory_in_the_way",
    ),
    _row(
        "T-0135",
        "a process looks for the host's programs to write to (CVE-2024-0135, CVE-2019-5736)",
        f"{PROCESS}::test_interpreter_is_not_reached",
    ),
    _row(
        "T-0136",
        "the image's own ldconfig, shell and interpreter (CVE-2024-0136, CVE-2024-0137)",
        f"{PROCESS}::test_variable_of_the_image",
        f"{IMAGES}::test_programs_of_the_image_do_not_run",
    ),
    _row(
        "T-23266",
        "hostile variables, modules in the working directory (CVE-2025-23266)",
        f"{PROCESS}::test_variable_of_the_image",
        f"{PROCESS}::test_entry_without_an_environment",
        f"{PROCESS}::test_wrong_stage_of_the_runtime",
    ),
    _row(
        "T-23267",
        "loader files as links, pipes, devices; monstrous directories (CVE-2025-23267)",
        f"{PATHS}::test_loader_cache_is_something_else",
        f"{PATHS}::test_monstrous_library_directory",
        f"{PATHS}::test_secret_of_a_volume_stays_there",
        "kernel/test_loader.py::test_unusable_cache",
    ),
    _row(
        "T-24260",
        "parents of links and of the loader cache change while they are used (CVE-2026-24260)",
        f"{RACES}::test_directory_becomes_a_link",
        f"{RACES}::test_target_becomes_a_link",
    ),
    _row(
        "T-1056",
        "nodes of other GPUs, made by the container (CVE-2021-1056)",
        f"{REQUESTS}::test_node_that_the_container_makes",
        f"{REQUESTS}::test_rule_that_is_no_number",
        f"{DEVICES}::test_only_granted_devices",
        f"{DEVICES}::test_only_granted_devices_in_v2",
        f"{DEVICES}::test_v1_rules_are_exact",
        f"{DEVICES}::test_v2_several_programs",
    ),
    _row(
        "T-PROC",
        "/proc is a directory, a link or a tmpfs (CVE-2019-19921, CVE-2025-52881)",
        f"{PATHS}::test_proc_is_something_else",
    ),
    _row(
        "T-DEV",
        "/dev or its nodes are links, files, other devices (CVE-2025-31133, CVE-2026-41579)",
        f"{PATHS}::test_node_is_something_else",
        f"{IMAGES}::test_dev_is_a_link_out",
        f"{IMAGES}::test_nodes_of_the_image_are_covered",
        f"{IMAGES}::test_links_of_a_volume_are_not_replaced",
    ),
    _row(
        "T-FD",
        "working directory in /proc/self/fd, descriptors left open (CVE-2024-21626)",
        f"{PROCESS}::test_working_directory_is_a_descriptor",
        f"{PROCESS}::test_container_has_no_descriptor_of_the_host",
        f"{PROCESS}::test_planner_inherits_nothing",
    ),
    _row(
        "T-CG",
        "odd cgroup names, cgroups outside of the namespace (CVE-2023-25809)",
        f"{REQUESTS}::test_cgroup_with_colons",
        f"{REQUESTS}::test_cgroup_with_colons_in_v2",
        f"{REQUESTS}::test_cgroup_outside_of_the_namespace",
        f"{DEVICES}::test_two_containers_see_their_own",
        f"{DEVICES}::test_v2_is_never_without_a_program",
    ),
    _row(
        "T-ANN",
        "annotations, labels and variables that ask for GPUs or name paths (CVE-2026-53492)",
        f"{REQUESTS}::test_annotations_grant_nothing",
        f"{REQUESTS}::test_annotations_widen_nothing",
        f"{REQUESTS}::test_variable_names_no_path",
        "test_request_sources.py::test_annotations_are_no_requests_by_default",
        "test_request_sources.py::test_who_gets_what",
    ),
    _row(
        "T-LAZY",
        "the image ships Python's library, libc, nss, gconv (CVE-2019-14271)",
        f"{PROCESS}::test_after_joining",
        f"{PROCESS}::test_after_joining_under_each_runtime",
        f"{PROCESS}::test_after_joining_in_a_failure",
        f"{PROCESS}::test_variable_of_the_image",
    ),
    _row(
        "T-PLAN",
        "plans and entries that someone else than root could have made (CVE-2024-25621)",
        f"{STAGE}::test_untrusted_file",
        f"{STAGE}::test_run_directory_of_others",
        f"{STAGE}::test_run_directory_is_a_link",
        f"{STAGE}::test_run_directory_in_a_place_of_others",
        f"{STAGE}::test_plan_with_another_content",
        f"{STATE}::test_wrong_value",
    ),
    _row(
        "T-SOCK",
        "other users, slow peers and false agents on the hook socket (CVE-2020-15257)",
        f"{REQUESTS}::test_agent_that_is_not_roots",
        "test_hooksocket.py::test_only_root_is_answered",
        "test_hooksocket.py::test_slow_peer_is_cut_off",
        "test_hooksocket.py::test_nonsense_is_hung_up_on",
        "test_hooksocket.py::test_silent_agent_meets_the_hooks_own_timeout",
    ),
    _row(
        "T-STATE",
        "states that name the host, another container, nobody",
        f"{REQUESTS}::test_pid_of_another_container",
        f"{REQUESTS}::test_pid_that_ended",
        f"{STATE}::test_process_of_the_host",
        f"{STATE}::test_root_is_none",
        f"{STATE}::test_wrong_value",
    ),
    _row(
        "T-CR",
        "a container comes back after the driver changed (CVE-2026-119101)",
        f"{REQUESTS}::test_restarted_container_is_checked_again",
        f"{STAGE}::test_staged_for_an_older_generation",
        "kernel/test_bad_sources.py::test_changed_host",
    ),
    _row(
        "T-DUP",
        "plans whose steps lie on or in one another",
        f"{REQUESTS}::test_two_steps_for_one_place",
        f"{REQUESTS}::test_same_place_by_another_name",
        f"{REQUESTS}::test_conflicts_are_all_found",
    ),
)

# Rules as code, and the tests that fail when the rule is broken; attacks above cover the rest.
RULES = (
    _row("R1", "in-root resolution to a descriptor", f"{IMAGES}::test_directory_is_a_link"),
    _row("R2", "the same without openat2", f"{IMAGES}::test_directory_is_a_link"),
    _row("R3", "parents one at a time, new names only", f"{PATHS}::test_parent_is_a_link"),
    _row(
        "R4",
        "nothing made on, nothing read from a volume",
        f"{IMAGES}::test_nothing_is_made_on_a_volume",
        f"{PATHS}::test_secret_of_a_volume_stays_there",
    ),
    _row("R5", "no open of the image blocks", f"{PATHS}::test_loader_cache_is_something_else"),
    _row(
        "R6", "sources are the plan's, unchanged", "kernel/test_bad_sources.py::test_changed_host"
    ),
    _row("R7", "flags and propagation", "kernel/test_mounts.py::test_mounts_come_from_the_plan"),
    _row("R8", "mounts by a checked procfs", f"{PROCESS}::test_after_joining"),
    _row("R9", "no plan in conflict with itself", f"{REQUESTS}::test_two_steps_for_one_place"),
    _row("R10", "a failure undoes", f"{IMAGES}::test_failure_after_the_mounts_restores_the_image"),
    _row("R11", "never the host's namespace or root", f"{STATE}::test_root_is_none"),
    _row("R12", "the entry's environment", f"{PROCESS}::test_variable_of_the_image"),
    _row("R13", "no configuration by environment", f"{PROCESS}::test_variable_of_the_image"),
    _row("R14", "nothing of the image runs", f"{PROCESS}::test_variable_of_the_image"),
    _row("R15", "no ldconfig", f"{IMAGES}::test_programs_of_the_image_do_not_run"),
    _row("R16", "no inherited descriptor", f"{PROCESS}::test_planner_inherits_nothing"),
    _row("R18", "no other stage", f"{PROCESS}::test_wrong_stage_of_the_runtime"),
    _row(
        "R19", "policy for the environment", "test_request_sources.py::test_namespaces_that_may_ask"
    ),
    _row("R20", "privilege from the spec", "test_request.py::test_privileged_policy"),
    _row("R21", "exact rules", f"{DEVICES}::test_v1_rules_are_exact"),
    _row("R22", "allow-listed annotations", f"{REQUESTS}::test_annotations_grant_nothing"),
    _row("R23", "run directory and files", f"{STAGE}::test_untrusted_file"),
    _row("R24", "whole files", "test_stage.py::test_a_reader_never_sees_half_a_file"),
    _row("R25", "sockets", "test_hooksocket.py::test_only_root_is_answered"),
    _row("R26", "no agent", "kernel/test_slow_paths.py::test_nothing_asked_nothing_needed"),
    _row("R27", "specs are hostile", "test_request.py::test_any_bytes_are_read_or_refused"),
    _row("R28", "one clean line", f"{STATE}::test_wrong_value"),
    _row("R29", "own cgroup only", f"{REQUESTS}::test_cgroup_outside_of_the_namespace"),
    _row("R30", "masks on procfs only", f"{PATHS}::test_proc_is_something_else"),
    _row("R31", "concurrent change", f"{RACES}::test_directory_becomes_a_link"),
    _row("R32", "restart is validated", f"{REQUESTS}::test_restarted_container_is_checked_again"),
)
