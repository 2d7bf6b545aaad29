// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The PCI function of a VM's device process, as the nodes of NVIDIA's driver: nvidiactl, nvidia0..
 * and nvidia-uvm. libcuda and its programs run over them unmodified.
 */
#include <linux/interrupt.h>
#include <linux/module.h>
#include <linux/panic_notifier.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>

#include "turnstile_nv.h"

#define MAJOR_NVIDIA 195
#define MINORS 256
#define MINOR_CONTROL 255
/* Permissions of the nodes, as NVIDIA's driver has them. */
#define NODE_MODE 0666

struct workqueue_struct *ts_works;
static DEFINE_MUTEX(the_mutex);
static struct ts_device *the_device;
static struct class *the_class;
static int the_uvm_major;

struct ts_device *ts_device_get(void)
{
	struct ts_device *dev;

	mutex_lock(&the_mutex);
	dev = the_device;
	if (dev)
		kref_get(&dev->ref);
	mutex_unlock(&the_mutex);
	return dev;
}

static void device_free(struct kref *ref)
{
	struct ts_device *dev = container_of(ref, struct ts_device, ref);

	xa_destroy(&dev->by_id);
	xa_destroy(&dev->ram);
	kvfree(dev->rows);
	pci_dev_put(dev->pdev);
	kfree(dev);
}

void ts_device_put(struct ts_device *dev)
{
	kref_put(&dev->ref, device_free);
}

/*
 * While files are open or requests in flight: notices that the device process is gone. Memory that
 * it had is given back when the last file is closed, and the driver of the host has had time to
 * close its own.
 */
static void watch(struct work_struct *work)
{
	struct ts_device *dev = container_of(work, struct ts_device, watch.work);
	bool is_used;

	mutex_lock(&dev->mutex);
	is_used = !list_empty(&dev->files);
	mutex_unlock(&dev->mutex);
	if (READ_ONCE(dev->lost) && !is_used)
		ts_ram_release_all(dev);
	else if ((is_used || ts_in_flight(dev)) && ts_alive(dev))
		queue_delayed_work(ts_works, &dev->watch, HZ);
}

static int show_params(struct seq_file *out, void *unused)
{
	/* What nvidia-modprobe reads: the nodes are there, and it makes none. */
	seq_printf(out, "ModifyDeviceFiles: 0\nDeviceFileUID: 0\nDeviceFileGID: 0\n");
	seq_printf(out, "DeviceFileMode: %d\n", NODE_MODE);
	return 0;
}

static int show_version(struct seq_file *out, void *unused)
{
	struct ts_device *dev = ts_device_get();

	if (!dev)
		return -ENODEV;
	seq_printf(out, "NVRM version: NVIDIA UNIX x86_64 Kernel Module  %s  (Turnstile)\n",
		   dev->version);
	ts_device_put(dev);
	return 0;
}

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 2, 0)
static char *node_mode(const struct device *device, umode_t *mode)
#else
static char *node_mode(struct device *device, umode_t *mode)
#endif
{
	if (mode)
		*mode = NODE_MODE;
	return NULL;
}

static void remove_nodes(struct ts_device *dev)
{
	u32 gpu;

	remove_proc_subtree("driver/nvidia", NULL);
	for (gpu = 0; gpu < dev->gpus; gpu++)
		device_destroy(the_class, MKDEV(MAJOR_NVIDIA, gpu));
	device_destroy(the_class, MKDEV(MAJOR_NVIDIA, MINOR_CONTROL));
	device_destroy(the_class, MKDEV(the_uvm_major, 0));
}

static int make_nodes(struct ts_device *dev)
{
	struct proc_dir_entry *folder;
	struct device *made;
	u32 gpu;

	made = device_create(the_class, NULL, MKDEV(MAJOR_NVIDIA, MINOR_CONTROL), NULL,
			     "nvidiactl");
	for (gpu = 0; gpu < dev->gpus && !IS_ERR(made); gpu++)
		made = device_create(the_class, NULL, MKDEV(MAJOR_NVIDIA, gpu), NULL, "nvidia%u",
				     gpu);
	if (!IS_ERR(made))
		made = device_create(the_class, NULL, MKDEV(the_uvm_major, 0), NULL, "nvidia-uvm");
	folder = proc_mkdir("driver/nvidia", NULL);
	if (folder) {
		proc_create_single("params", 0444, folder, show_params);
		proc_create_single("version", 0444, folder, show_version);
	}
	if (!IS_ERR(made))
		return 0;
	remove_nodes(dev);
	return PTR_ERR(made);
}

/* Protocol, the driver's version, its table, and how many GPUs there are. */
static int introduce(struct ts_device *dev)
{
	struct ts_request *request = ts_request_new(dev, TS_HELLO, 0, PAGE_SIZE);
	int error = -ENOMEM;
	void *bytes;
	u32 length;

	if (!request)
		return error;
	ts_header(request)->a = TS_PROTOCOL;
	error = ts_ask(request);
	if (error)
		return error;
	bytes = ts_buffer(request, 0, &length);
	if (bytes)
		memcpy(dev->version, bytes, min_t(u32, length, sizeof(dev->version) - 1));
	ts_request_free(request);
	error = ts_table_load(dev);
	for (dev->gpus = 0; !error && dev->gpus < TS_GPUS_MAX; dev->gpus++) {
		request = ts_request_new(dev, TS_STAT, 0, PAGE_SIZE);
		if (!request)
			return -ENOMEM;
		ts_header(request)->a = dev->gpus;
		/* ENOENT behind the last. */
		if (ts_ask(request))
			break;
		ts_request_free(request);
	}
	return error;
}

static struct ts_device *device_new(struct pci_dev *pdev)
{
	struct ts_device *dev = kzalloc(sizeof(*dev), GFP_KERNEL);

	if (!dev)
		return NULL;
	kref_init(&dev->ref);
	dev->pdev = pci_dev_get(pdev);
	spin_lock_init(&dev->lock);
	init_rwsem(&dev->registers);
	mutex_init(&dev->mutex);
	init_waitqueue_head(&dev->room);
	INIT_LIST_HEAD(&dev->kept);
	INIT_LIST_HEAD(&dev->files);
	xa_init_flags(&dev->by_id, XA_FLAGS_LOCK_IRQ);
	xa_init_flags(&dev->ram, XA_FLAGS_ALLOC);
	hash_init(dev->objects);
	INIT_DELAYED_WORK(&dev->watch, watch);
	INIT_WORK(&dev->released, ts_released);
	return dev;
}

static int probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct ts_device *dev;
	int error;

	error = pcim_enable_device(pdev);
	if (error)
		return error;
	dev = device_new(pdev);
	if (!dev)
		return -ENOMEM;
	error = -ENODEV;
	dev->regs = pcim_iomap(pdev, 0, 0);
	if (!dev->regs || readl(dev->regs + TS_REG_IDENTITY) != TS_IDENTITY_VALUE)
		goto no_device;
	if (readl(dev->regs + TS_REG_VERSION) != TS_VERSION_VALUE) {
		dev_err(&pdev->dev, "the device has version %u, the module knows %u\n",
			readl(dev->regs + TS_REG_VERSION), TS_VERSION_VALUE);
		goto no_device;
	}
	error = dma_set_mask_and_coherent(&pdev->dev, DMA_BIT_MASK(64));
	if (error)
		goto no_device;
	dma_set_max_seg_size(&pdev->dev, UINT_MAX);
	pci_set_master(pdev);
	error = pci_alloc_irq_vectors(pdev, TS_VECTORS, TS_VECTORS, PCI_IRQ_MSIX);
	if (error < 0)
		goto no_device;
	error = ts_queue_start(dev);
	if (error)
		goto no_queue;
	error = introduce(dev);
	if (!error)
		error = make_nodes(dev);
	if (error)
		goto no_host;
	pci_set_drvdata(pdev, dev);
	mutex_lock(&the_mutex);
	/* One function serves all GPUs of a VM. */
	if (the_device)
		error = -EBUSY;
	else
		the_device = dev;
	mutex_unlock(&the_mutex);
	if (!error) {
		dev_info(&pdev->dev, "driver %s of the host, %u GPUs\n", dev->version, dev->gpus);
		return 0;
	}
	remove_nodes(dev);
no_host:
	ts_queue_stop(dev);
	cancel_work_sync(&dev->released);
no_queue:
	pci_free_irq_vectors(pdev);
no_device:
	ts_device_put(dev);
	return error;
}

static void remove(struct pci_dev *pdev)
{
	struct ts_device *dev = pci_get_drvdata(pdev);
	struct ts_file *file;

	mutex_lock(&the_mutex);
	the_device = NULL;
	mutex_unlock(&the_mutex);
	remove_nodes(dev);
	ts_queue_stop(dev);
	cancel_delayed_work_sync(&dev->watch);
	cancel_work_sync(&dev->released);
	/* Doorbells of a function that is gone must not be reached. */
	mutex_lock(&dev->mutex);
	list_for_each_entry(file, &dev->files, link)
		unmap_mapping_range(file->file->f_mapping, 0, 0, 1);
	mutex_unlock(&dev->mutex);
	ts_ram_release_all(dev);
	pci_free_irq_vectors(pdev);
	ts_device_put(dev);
}

/* The guest ends or starts again: the host closes all files. */
static void shut_down(struct pci_dev *pdev)
{
	struct ts_device *dev = pci_get_drvdata(pdev);

	down_write(&dev->registers);
	writel(0, dev->regs + TS_REG_CONTROL);
	readl(dev->regs + TS_REG_STATUS);
	ts_lose(dev);
	up_write(&dev->registers);
}

/* A guest that panics uses the GPU no more. */
static int panicked(struct notifier_block *block, unsigned long event, void *text)
{
	struct ts_device *dev = READ_ONCE(the_device);

	if (dev)
		writel(0, dev->regs + TS_REG_CONTROL);
	return NOTIFY_DONE;
}

static struct notifier_block panic_block = { .notifier_call = panicked };

static const struct pci_device_id ids[] = {
	{ PCI_DEVICE(TS_VENDOR_ID, TS_DEVICE_ID) },
	{ }
};
MODULE_DEVICE_TABLE(pci, ids);

static struct pci_driver driver = {
	.name = "turnstile_nv",
	.id_table = ids,
	.probe = probe,
	.remove = remove,
	.shutdown = shut_down,
};

static int __init start(void)
{
	int error;

	ts_works = alloc_workqueue("turnstile_nv", WQ_UNBOUND, 0);
	if (!ts_works)
		return -ENOMEM;
	error = __register_chrdev(MAJOR_NVIDIA, 0, MINORS, "nvidia", &ts_fops);
	if (error < 0)
		goto no_nodes;
	the_uvm_major = __register_chrdev(0, 0, 1, "nvidia-uvm", &ts_fops);
	error = the_uvm_major;
	if (error < 0)
		goto no_uvm;
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 4, 0)
	the_class = class_create("nvidia");
#else
	the_class = class_create(THIS_MODULE, "nvidia");
#endif
	error = PTR_ERR_OR_ZERO(the_class);
	if (error)
		goto no_class;
	the_class->devnode = node_mode;
	error = pci_register_driver(&driver);
	if (error)
		goto no_driver;
	atomic_notifier_chain_register(&panic_notifier_list, &panic_block);
	return 0;
no_driver:
	class_destroy(the_class);
no_class:
	__unregister_chrdev(the_uvm_major, 0, 1, "nvidia-uvm");
no_uvm:
	__unregister_chrdev(MAJOR_NVIDIA, 0, MINORS, "nvidia");
no_nodes:
	destroy_workqueue(ts_works);
	return error;
}

static void __exit stop(void)
{
	atomic_notifier_chain_unregister(&panic_notifier_list, &panic_block);
	pci_unregister_driver(&driver);
	class_destroy(the_class);
	__unregister_chrdev(the_uvm_major, 0, 1, "nvidia-uvm");
	__unregister_chrdev(MAJOR_NVIDIA, 0, MINORS, "nvidia");
	destroy_workqueue(ts_works);
}

module_init(start);
module_exit(stop);
MODULE_DESCRIPTION("CUDA in a guest: NVIDIA's nodes over a device process of the host");
MODULE_AUTHOR("Turnstile");
MODULE_LICENSE("Dual MIT/GPL");
