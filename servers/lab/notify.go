package lab

import "gvisor.dev/gvisor/pkg/waiter"

// notice is told by a stack when a socket has become ready, and wakes who waits for it.
type notice struct {
	lab   *Lab
	ready chan struct{} // holds one signal
	entry waiter.Entry
	queue *waiter.Queue
}

// init registers n for mask and the errors.
func (n *notice) init(l *Lab, wq *waiter.Queue, mask waiter.EventMask) {
	n.lab, n.queue, n.ready = l, wq, make(chan struct{}, 1)
	n.entry.Init(n, mask|waiter.EventHUp|waiter.EventErr)
	wq.EventRegister(&n.entry)
}

// NotifyEvent implements waiter.EventListener.
func (n *notice) NotifyEvent(waiter.EventMask) { n.lab.wake(n.ready) }

func (n *notice) end() { n.queue.EventUnregister(&n.entry) }
