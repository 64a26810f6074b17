// Browsers start no worker for a page opened from a file. The search then runs in a hidden frame instead.
// The name of this file tells the offline plugin of Material that it need not load one from another host.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      const inner = (this.inner = frame.contentWindow)
      inner.document.open()
      inner.document.write("<!doctype html><body></body>")
      inner.document.close()
      const send = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      inner.postMessage = (data) => setTimeout(send, 0, structuredClone(data))
      const load = (source) =>
        new Promise((resolve, reject) => {
          const script = inner.document.createElement("script")
          Object.assign(script, { src: source, async: false, onload: resolve, onerror: reject })
          inner.document.body.append(script)
        })
      inner.importScripts = (...sources) => Promise.all(sources.map(load))
      this.loaded = load(url)
    }
    postMessage(data) {
      this.loaded.then(() => this.inner.dispatchEvent(new MessageEvent("message", { data: structuredClone(data) })))
    }
    terminate() {
      this.inner.frameElement.remove()
    }
  }
}
