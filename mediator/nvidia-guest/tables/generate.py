#!/usr/bin/env python3
"""Generates the interface table of a driver release from NVIDIA's published headers.

    generate.py REPOSITORY RELEASE HEADERS run|headers > RELEASE.table

REPOSITORY is a clone of NVIDIA/open-gpu-kernel-modules, HEADERS one of its tags. A table holds what
a guest may call, and nothing else: sizes, addresses within parameters, descriptors, clients. Its last
lines are numbers and structures of the calls that the daemon makes. Needs git and a C compiler. `src/abi/parse.rs` has the form of a table.
"""
import glob
import os
import re
import subprocess
import sys
import tempfile

SOURCES = [
    "src/nvidia/generated", "src/common/sdk/nvidia/inc", "src/nvidia/src/kernel/rmapi/resource_list.h",
    "kernel-open/nvidia-uvm/uvm_ioctl.h", "kernel-open/nvidia-uvm/uvm_linux_ioctl.h",
    "kernel-open/nvidia-uvm/uvm_types.h", "src/nvidia/arch/nvalloc/unix/include", "kernel-open/common/inc",
]

# Escapes: number, name, structures of its argument. No structure: the size that this interface has had since 515.
ESCAPES = [
    (0x27, "RM_ALLOC_MEMORY", ["nv_ioctl_nvos02_parameters_with_fd"]),
    (0x29, "RM_FREE", ["NVOS00_PARAMETERS"]),
    (0x2A, "RM_CONTROL", ["NVOS54_PARAMETERS"]),
    (0x2B, "RM_ALLOC", ["NVOS64_PARAMETERS", "NVOS21_PARAMETERS"]),
    (0x34, "RM_DUP_OBJECT", ["NVOS55_PARAMETERS"]),
    (0x35, "RM_SHARE", ["NVOS57_PARAMETERS"]),
    (0x4E, "RM_MAP_MEMORY", ["nv_ioctl_nvos33_parameters_with_fd"]),
    (0x4F, "RM_UNMAP_MEMORY", ["NVOS34_PARAMETERS"]),
    (0x5E, "RM_UPDATE_DEVICE_MAPPING_INFO", ["NVOS56_PARAMETERS"]),
    (0xC8, "CARD_INFO", ["nv_ioctl_card_info_t*32"]),
    (0xC9, "REGISTER_FD", ["nv_ioctl_register_fd_t"]),
    (0xCE, "ALLOC_OS_EVENT", ["nv_ioctl_alloc_os_event_t"]),
    (0xCF, "FREE_OS_EVENT", ["nv_ioctl_free_os_event_t"]),
    (0xD2, "CHECK_VERSION_STR", ["nv_ioctl_rm_api_version_t"]),
    (0xD4, "ATTACH_GPUS_TO_FD", [128]),
    (0xD6, "SYS_PARAMS", ["nv_ioctl_sys_params_t"]),
    (0xD7, "NUMA_INFO", ["nv_ioctl_numa_info_t"]),
    (0xDA, "WAIT_OPEN_COMPLETE", ["nv_ioctl_wait_open_complete_t"]),
]

# Classes that a guest may allocate. 0x71 is allocated by RM_ALLOC_MEMORY alone.
CLASSES = """0 41 80 2080 2081 3e 40 79 de 503b 503c 50a0 83de 9067 90e6 90f1 a06c cb33 c639 c640
    c361 c461 c561 c661 c761 b06f c06f c36f c46f c56f c86f c96f ca6f c0b5 c3b5 c5b5 c6b5 c7b5 c8b5 c9b5 cab5
    c0c0 c3c0 c5c0 c6c0 c7c0 c9c0 cbc0 cdc0 cec0""".split()
# Descriptors and further clients in their parameters.
CLASS_FD = {0x79: "fd@16:8"}
CLASS_CLIENT = {0x80: [4, 8], 0x79: [0], 0x83DE: [4], 0xCB33: [0]}

# Controls that CUDA, PyTorch, JAX, CuPy, NCCL and NVML make. Not among them: 208001a3, the state of the NVLink
# fabric. With it libcuda makes objects of the fabric (class f8) over memory of 512 MiB and more, which then cannot move.
CONTROLS = """101 127 12b 13a 1f0 201 202 205 214 215 21b 279 27b 288 289 a04 d01 d04 3d05 3d06 3d0b 3d0c
    00de0001 503c0102 503c0104 503c0105 83de0309 906f0101 90e60102 a06c0101 a06c0103 a06c0105 c36f0108 cb330101
    800280 800289 800292 801102 801301 801307 801401 801402 801701 80170d 801909 800201 410110
    20800101 20800102 20800110 20800111 20800119 20800123 20800124 2080012f 20800131 20800145 20800146 2080014a
    20800170 2080018d 20800195 20800406 20800802 20801201 20801210 20801218 2080121b 20801227 2080122a 2080122b
    20801230 20801301 20801303 20801701 20801702 20801801 20801802 20801803 20801823 2080182a 2080182b 2080200a 2080220c
    20802210 20802a01 20802a0a 20803001 20803002 20803601 20803801 20810108
    20808159 20808162 20809001 20809009 20809038 20809064 2080a026 2080a084""".split()
# Answered with success, not carried out: opening of a client's objects to every process, clock boosts, the
# timeslice of a group, which is the host's.
ANSWERED = {0xD04, 0x2080200A, 0xA06C0103}
# Answered with an empty list: the processes on the GPU, which are other tenants'.
EMPTY = {0x2080018D}
# Embedded buffers: byte of the address, byte of the count, bytes of an element (`^`: count squared).
BUFFERS = {
    0x101: ["8:0:1", "16:0:1", "24:0:1"], 0x127: ["160:128:4^", "168:128:4^"],
    0x80170D: ["8:0:4", "16:0:4"], 0x20801201: ["8:0:8"], 0x20801802: ["8:0:8"], 0x20801301: ["8:0:8"],
    0x20800101: ["8:0:8"], 0x20800802: ["8:0:8"], 0x410110: ["8:0:8"], 0x20800123: ["8:0:4"],
    0x800201: ["8:0:4"], 0x20800124: ["8:4:4"], 0x801102: ["8:0:1"], 0x801301: ["8:0:1"],
    0x801401: ["8:0:1"], 0x801701: ["8:0:1"], 0x20802A01: ["8:4:1"],
}
# Controls that the driver takes in an older form, which its own table does not list.
OLDER = {0x101: "NV0000_CTRL_SYSTEM_GET_BUILD_VERSION_PARAMS", 0x20800101: "NV2080_CTRL_GPU_GET_INFO_PARAMS",
         0x20801301: "NV2080_CTRL_FB_GET_INFO_PARAMS", 0x20801802: "NV2080_CTRL_BUS_GET_INFO_PARAMS",
         0x20800802: "NV2080_CTRL_BIOS_GET_INFO_PARAMS"}
CONTROL_FD = {0x3D05: 16, 0x3D06: 0, 0x3D0B: 0, 0x3D0C: 0}

# Calls of unified memory; `base` is the byte of the range's address, where a hint names one.
UVM = [0x30000001, 23, 24, 25, 26, 27, 28, 29, 30, 31, 33, 34, 37, 38, 39, 42, 43, 44, 45, 46, 47, 51, 65, 66,
       68, 72, 73, 75, 80]

# What the daemon uses: numbers, and fields of structures.
HOST_NUMBERS = """NV_ESC_RM_FREE NV_ESC_RM_CONTROL NV_ESC_RM_ALLOC NV_ESC_RM_MAP_MEMORY NV_ESC_CARD_INFO NV_ESC_REGISTER_FD
    NV_ESC_IOCTL_XFER_CMD NV01_ROOT_CLIENT KEPLER_CHANNEL_GROUP_A HOPPER_CHANNEL_GPFIFO_A NV01_MEMORY_LOCAL_PRIVILEGED
    HOPPER_USERMODE_A NV01_MEMORY_DEVICELESS NV_EVENT_BUFFER
    NV_EVENT_BUFFER_CTRL_CMD_ENABLE_EVENTS NV_EVENT_BUFFER_CTRL_CMD_UPDATE_GET NV_EVENT_BUFFER_CTRL_CMD_FLUSH
    NV2080_CTRL_CMD_GR_FECS_BIND_EVTBUF_FOR_UID_V2 NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS NV2080_CTRL_CMD_GPU_EXEC_REG_OPS
    NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2 NVA06C_CTRL_CMD_SET_TIMESLICE
    NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS_FOR_KEY_ROTATION NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS_FOR_KEY_ROTATION_V2
    NV2080_CTRL_CMD_FIFO_DISABLE_USERMODE_CHANNELS NV5080_CTRL_CMD_DEFERRED_API NV5080_CTRL_CMD_DEFERRED_API_V2
    NV2080_CTRL_CMD_FIFO_CHANNEL_PREEMPTIVE_REMOVAL NV2080_CTRL_CMD_FIFO_CONFIG_CTXSW_TIMEOUT
    NV2080_CTRL_CMD_FIFO_RUNLIST_SET_SCHED_POLICY NV2080_CTRL_CMD_FIFO_OBJSCHED_SET_STATE
    NV2080_CTRL_CMD_GR_SET_CTXSW_PREEMPTION_MODE NV2080_CTRL_CMD_GR_CTXSW_PREEMPTION_BIND NVA06C_CTRL_CMD_GPFIFO_SCHEDULE
    NVA06F_CTRL_CMD_GPFIFO_SCHEDULE NVA06C_CTRL_CMD_PREEMPT NVA06C_CTRL_CMD_SET_INTERLEAVE_LEVEL
    NVA06F_CTRL_CMD_SET_INTERLEAVE_LEVEL NVA06C_CTRL_CMD_MAKE_REALTIME NVA06F_CTRL_CMD_RESTART_RUNLIST""".split()
HOST_STRUCTURES = {
    "NVOS21_PARAMETERS": "hRoot hObjectParent hObjectNew hClass pAllocParms paramsSize status",
    "NVOS54_PARAMETERS": "hClient hObject cmd flags params paramsSize status",
    "NVOS00_PARAMETERS": "hRoot hObjectParent hObjectOld status",
    "nv_ioctl_nvos33_parameters_with_fd": "params.hClient params.hDevice params.hMemory params.offset params.length"
                                          " params.pLinearAddress params.status params.flags fd",
    "nv_ioctl_card_info_t": "valid gpu_id minor_number",
    "NV0080_ALLOC_PARAMETERS": "deviceId",
    "NV2080_ALLOC_PARAMETERS": "subDeviceId",
    "NV_MEMORY_ALLOCATION_PARAMS": "attr attr2 size",
    "NV_EVENT_BUFFER_ALLOC_PARAMETERS": "recordSize recordCount hSubDevice hBufferHeader hRecordBuffer",
    "NV2080_CTRL_GR_FECS_BIND_EVTBUF_FOR_UID_V2_PARAMS": "hEventBuffer recordSize levelOfDetail eventFilter bAllUsers reasonCode",
    "NV_EVENT_BUFFER_CTRL_CMD_ENABLE_EVENTS_PARAMS": "enable flags",
    "NV_EVENT_BUFFER_CTRL_CMD_UPDATE_GET_PARAMS": "recordBufferGet varDataBufferGet",
    "NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN_PARAMS": "workSubmitToken",
    "NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS": "gpuId gpuFlags deviceInstance subDeviceInstance",
    "NVA06C_CTRL_TIMESLICE_PARAMS": "timesliceUs",
    "NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS": "bDisable numChannels bOnlyDisableScheduling bRewindGpPut"
                                                " pRunlistPreemptEvent hClientList hChannelList",
    "NV2080_CTRL_GPU_REG_OP": "regOp regType regStatus regQuad regGroupMask regSubGroupMask regOffset regValueHi"
                              " regValueLo regAndNMaskHi regAndNMaskLo",
    "NV2080_CTRL_GPU_EXEC_REG_OPS_PARAMS": "hClientTarget hChannelTarget bNonTransactional regOpCount regOps grRouteInfo",
}


def unpack(repository, tag, folder):
    for source in SOURCES:
        archive = subprocess.run(["git", "-C", repository, "archive", tag, source], capture_output=True)
        if archive.returncode == 0:
            subprocess.run(["tar", "x", "-C", folder], input=archive.stdout, check=True)


def read(*path):
    with open(os.path.join(*path), errors="replace") as file:
        return file.read()


def plain(text):
    return re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.S)


def structures(text):
    found = re.finditer(r"typedef struct\s*(?:\w+\s*)?\{(.*?)\}\s*(\w+);", text, re.S)
    return {match[2]: plain(match[1]) for match in found}


def controls(folder):
    """Control -> structure of its parameters, of the driver's own table."""
    entry = re.compile(r"/\*methodId=\*/\s*(0x[0-9a-f]+)u,\s*/\*paramSize=\*/\s*(?:sizeof\(([A-Za-z0-9_ ]+)\)|0)")
    found = {}
    for path in glob.glob(folder + "/src/nvidia/generated/g_*_nvoc.c"):
        for match in entry.finditer(read(path)):
            found[int(match[1], 16)] = match[2]
    return found


def classes(folder):
    """Name of a class -> structure of its parameters."""
    entry = re.compile(r"RS_ENTRY\(\s*/\* External Class\s*\*/\s*(\w+),.*?/\* Alloc Param Info\s*\*/\s*"
                       r"(?:RS_NONE|RS_REQUIRED\((\w+)\)|RS_OPTIONAL\((\w+)\))", re.S)
    text = read(folder, "src/nvidia/src/kernel/rmapi/resource_list.h")
    return {match[1]: match[2] or match[3] for match in entry.finditer(text)}


def compiled(folder, headers, lines):
    """Runs a program that prints sizes and offsets; leaves out what a release does not have."""
    include = folder + "/src/common/sdk/nvidia/inc"
    head = ["stdio.h", "stddef.h"]
    local = ["nvtypes.h", "nvmisc.h", "nvos.h", *headers, "nv-ioctl.h", "nv-ioctl-numa.h", "nv-unix-nvos-params-wrappers.h",
             "nv_escape.h"]
    for _ in range(40):
        text = "".join(f"#include <{name}>\n" for name in head) + "".join(f'#include "{name}"\n' for name in local)
        text += '#define UVM_IOCTL_BASE(i) i\n#include "uvm_ioctl.h"\n#include "uvm_linux_ioctl.h"\nint main(void){\n'
        first = text.count("\n") + 1
        with open(folder + "/t.c", "w") as file:
            file.write(text + "\n".join(lines) + "\nreturn 0;}\n")
        folders = [include, "src/nvidia/arch/nvalloc/unix/include", "kernel-open/nvidia-uvm", "kernel-open/common/inc"]
        options = ["-I" + os.path.join(folder, name) for name in folders]
        built = subprocess.run(["cc", "-w", "-DNV_LINUX", "-fmax-errors=0", *options, "-o", folder + "/t", folder + "/t.c"],
                               capture_output=True, text=True)
        if built.returncode == 0:
            return subprocess.run([folder + "/t"], capture_output=True, text=True, check=True).stdout
        bad = {int(m[1]) - first for m in re.finditer(r"t\.c:(\d+):\d+: error", built.stderr)}
        broken = {m[1] for m in re.finditer(r"/((?:ctrl|class|alloc)/[\w/\-]+\.h|nv-ioctl-numa\.h):\d+:\d+: (?:fatal )?error", built.stderr)}
        if not bad and not broken:
            sys.exit(built.stderr[:3000])
        lines = [line for at, line in enumerate(lines) if at not in bad]
        local = [name for name in local if name not in broken]
    sys.exit("the headers do not compile")


def main(repository, release, tag, shown):
    folder = tempfile.mkdtemp()
    unpack(repository, tag, folder)
    include = folder + "/src/common/sdk/nvidia/inc"
    headers = [os.path.relpath(path, include) for part in ("ctrl", "ctrl/*", "class", "alloc")
               for path in sorted(glob.glob(f"{include}/{part}/*.h"))]
    fields = {}
    for name in [*headers, "nvos.h"]:
        fields.update(structures(read(include, name)))
    uvm_text = read(folder, "kernel-open/nvidia-uvm/uvm_ioctl.h") + read(folder, "kernel-open/nvidia-uvm/uvm_linux_ioctl.h")
    uvm_fields = structures(uvm_text)
    uvm_names = re.findall(r"#define\s+(UVM_\w+)\s+UVM_IOCTL_BASE\(", uvm_text) + ["UVM_INITIALIZE"]
    lines = []
    emit = lambda key, value: lines.append(f'printf("{key} %zu\\n",(size_t)({value}));')
    members = lambda body, pattern: re.findall(pattern, body or "")
    wanted = {int(number, 16) for number in CONTROLS}
    table = OLDER | controls(folder)
    for number in sorted(wanted & set(table)):
        structure = table[number]
        emit(f"control {number:x} size", f"sizeof({structure})" if structure else "0")
        body = fields.get(structure, "")
        for name in members(body, r"NvP64\s+(\w+)"):
            emit(f"control {number:x} pointer", f"offsetof({structure},{name})")
        for name, array in members(body, r"NvHandle\s+(h\w*Client\w*)\s*(\[[^\]]*\])?\s*;"):
            if array:
                sys.exit(f"control {number:x} has an array of clients")
            emit(f"control {number:x} client", f"offsetof({structure},{name})")
    for name, structure in classes(folder).items():
        lines.append(f'printf("class %x {name} size %zu\\n",(unsigned)({name}),(size_t)({f"sizeof({structure})" if structure else 0}));')
        for member in members(fields.get(structure), r"NvP64\s+(\w+)"):
            lines.append(f'printf("class %x {name} pointer %zu\\n",(unsigned)({name}),offsetof({structure},{member}));')
    for name in uvm_names:
        structure = name + "_PARAMS"
        key = f'printf("uvm %u {name} '
        lines.append(key + f'size %zu\\n",(unsigned)({name}),sizeof({structure}));')
        body = uvm_fields.get(structure, "")
        for member, kind in (("rmStatus", "status"), ("rmCtrlFd", "fd"), ("uvmFd", "fd"), ("hClient", "client"),
                             ("base", "base"), ("requestedBase", "base")):
            if re.search(rf"\b{member}\b", body):
                lines.append(key + f'{kind} %zu\\n",(unsigned)({name}),offsetof({structure},{member}));')
    for number, name, types in ESCAPES:
        for kind in types:
            if isinstance(kind, str):
                structure, _, count = kind.partition("*")
                emit(f"escape {number:x} size", f"sizeof({structure})" + (f"*{count}" if count else ""))
            else:
                emit(f"escape {number:x} size", kind)
    for name in HOST_NUMBERS:
        emit(f"number {name}", name)
    for name, members_of in HOST_STRUCTURES.items():
        emit(f"structure {name} bytes", f"sizeof({name})")
        for member in members_of.split():
            emit(f"structure {name} {member}", f"offsetof({name},{member})")
    found = {}
    for line in compiled(folder, headers, lines).splitlines():
        *key, value = line.split()
        found.setdefault(tuple(key), []).append(int(value))
    one = lambda *key: found.get(key, [None])[0]

    print(f"# Generated by tables/generate.py out of the headers of {tag}.")
    print(f"release {release} {tag} {shown}")
    for number, name, _ in ESCAPES:
        sizes = found.get(("escape", f"{number:x}", "size"))
        if not sizes:
            sys.exit(f"escape {name} has no size")
        print(f"escape {number:x} {name}", *sizes)
    allocated = {key[1]: key[2] for key in found if key[0] == "class" and key[3] == "size"}
    for number in sorted(int(text, 16) for text in CLASSES):
        name = allocated.get(f"{number:x}")
        if name is None:
            continue
        notes = [f"client@{at}" for at in CLASS_CLIENT.get(number, [])]
        notes += [f"null@{at}" for at in found.get(("class", f"{number:x}", name, "pointer"), [])]
        if number in CLASS_FD:
            notes = [note for note in notes if note != "null@16"] + [CLASS_FD[number]]
        print(f"class {number:x} {name}", one("class", f"{number:x}", name, "size"), *notes)
    for number in sorted(wanted):
        key = ("control", f"{number:x}")
        size = one(*key, "size")
        notes = ["empty"] if number in EMPTY else ["answer"] if number in ANSWERED else []
        buffers = BUFFERS.get(number, [])
        notes += [f"buffer@{text}" for text in buffers]
        inner = {int(text.split(":")[0]) for text in buffers}
        notes += [f"null@{at}" for at in found.get((*key, "pointer"), []) if at not in inner]
        notes += [f"client@{at}" for at in found.get((*key, "client"), [])]
        if number in CONTROL_FD:
            notes.append(f"fd@{CONTROL_FD[number]}:4")
        # In the firmware alone: the headers have no size.
        print(f"control {number:x}", "any" if size is None else size, *notes)
    names = {int(key[1]): key[2] for key in found if key[0] == "uvm" and key[3] == "size"}
    for number in UVM:
        if number not in names:
            continue
        key = ("uvm", str(number), names[number])
        notes = [f"{kind}@{at}" + (":4" if kind == "fd" else "") for kind in ("status", "fd", "client", "base")
                 for at in found.get((*key, kind), [])]
        print(f"uvm {number} {names[number]}", one(*key, "size"), *notes)
    # What a release does not have has no line.
    for name in HOST_NUMBERS:
        value = one("number", name)
        if value is not None:
            print(f"number {name} {value:x}")
    for name, members_of in HOST_STRUCTURES.items():
        size = one("structure", name, "bytes")
        places = [f"{member}@{one('structure', name, member)}" for member in members_of.split()
                  if ("structure", name, member) in found]
        if size is not None:
            print(f"structure {name} {size}", *places)
    subprocess.run(["rm", "-r", folder], check=True)


main(*sys.argv[1:5])
