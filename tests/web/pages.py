#!/usr/bin/env python3
"""The web page in Chromium, before a real coordinator, workers and trainers.

    tests/web/pages.py --bin build/dev/bin [--only CASE] [--screenshots FOLDER]

Needs `scripts/bootstrap --web`. Exit code 77: there is no Chromium.
"""

import argparse
import json
import os
import pathlib
import signal
import sys
import time
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "procedures"))
from cluster import PATIENCE, Failed, Place, await_that, check, free_address  # noqa: E402
from cases import add_only, run_cases  # noqa: E402

try:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
except ImportError:
    webdriver = None

DRIVER = "/usr/bin/chromedriver"
EVIL = "<img src=x onerror=window.hacked=1>"
SPEC = """name: {name}
model: {{gpt2: {{layers: 1, heads: 2, width: 32, vocabulary: 256, context: 32}}}}
data: {{train: {train}, sequence_length: 32}}
train: {{steps: {steps}, batch: {{global: 4, micro: 2}}}}
resources: {{ranks: 2, device: cpu}}
checkpoint: {{every: 50}}
restart: {{max_failures: 3}}
"""


class Browser:
    """One Chromium. Its console must stay free of errors of the page's own."""

    def __init__(self, url, width=1360, height=900, dark=False):
        options = webdriver.ChromeOptions()
        for one in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                    "--hide-scrollbars", f"--window-size={width},{height}"):
            options.add_argument(one)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.url = url
        self.driver = webdriver.Chrome(options=options, service=Service(DRIVER))
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600})
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]})

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        bad = [line["message"] for line in self.driver.get_log("browser")
               if line["level"] == "SEVERE" and line["source"] != "network"]
        hacked = self.driver.execute_script("return window.hacked")
        self.driver.quit()
        if kind is None:
            check(not bad, f"the console has {bad}")
            check(hacked is None, "a text of somebody's was carried out")

    def open(self, room):
        self.driver.get("about:blank")
        self.driver.get(self.url + room)

    def text(self):
        return self.driver.execute_script("return document.body.innerText")

    def await_text(self, *wanted, patience=PATIENCE):
        def there():
            shown = self.text()
            return all(one in shown for one in wanted)
        try:
            await_that(there, f"the page shows {wanted}", patience)
        except Failed as problem:
            raise Failed(f"{problem}\nit shows:\n{self.text()[:3000]}") from None

    def find(self, selector):
        return await_that(lambda: next(iter(self.driver.find_elements(By.CSS_SELECTOR, selector)),
                                       None), f"there is {selector}")

    def click(self, text, inside="body"):
        """The button or link with this text."""
        def clicked():
            for one in self.driver.find_elements(By.CSS_SELECTOR, f"{inside} button, {inside} a"):
                if one.is_displayed() and one.text.strip() == text:
                    one.click()
                    return True
            return False
        await_that(clicked, f"there is '{text}' to click")

    def fill(self, selector, text):
        field = self.find(selector)
        field.send_keys(Keys.CONTROL, "a")
        field.send_keys(text)

    def screenshot(self, path, height=None):
        if height:
            width = self.driver.execute_script("return innerWidth")
            self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
                "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600})
            time.sleep(1)  # charts are drawn anew; nothing waits for it but the picture
        self.driver.save_screenshot(str(path))


class Web(Place):
    """A coordinator, a worker and the page's server."""

    def serve(self, *flags, coordinator=(), worker=()):
        self.address = free_address()
        self.main = self.coordinator("main", "data", "--listen", self.address, *coordinator)
        self.agent = self.worker("host-a", self.address, *worker)
        return self.page("--coordinator", self.address, *flags)

    def page(self, *flags):
        self.start("web", "milepost", "web", "--listen", "127.0.0.1:0", *flags)
        log = self.folder / "web.log"
        lines = await_that(lambda: [one for one in log.read_text().splitlines()
                                    if one.startswith("http")], "the page is served")
        return lines[0]

    def trainers(self):
        found = []
        for folder in pathlib.Path("/proc").iterdir():
            try:
                if folder.name.isdigit() and (folder / "stat").read_text().split()[3] == str(
                        self.agent.pid) and b"trainer" in (folder / "cmdline").read_bytes():
                    found.append(int(folder.name))
            except (OSError, IndexError):
                continue
        return found


def sizes_of_ranks(browser):
    """How many sizes the table of ranks has."""
    return browser.driver.execute_script(r"""
        const table = document.querySelector('section[aria-label="Ranks"]');
        return table ? [...table.querySelectorAll('td.num')].filter(
            (one) => /^[0-9.,]+ [KMG]iB$/.test(one.textContent)).length : 0""")


def job_from_start_to_end(place, shots):
    """Planned, submitted, watched and looked into; a trainer is killed in the middle."""
    url = place.serve()
    place.login = ["--coordinator", place.address]
    place.make_data()
    with Browser(url) as browser:
        browser.open("#/jobs")
        browser.await_text("There are no jobs yet", "Live")
        browser.open("#/plan")
        spec = SPEC.format(name="quick", train=place.folder / "train.npy", steps=6000)
        area = browser.find("textarea")
        browser.driver.execute_script("arguments[0].value = arguments[1]", area, spec)
        browser.click("See what it needs")
        browser.await_text("Would be accepted", "RTX 4090", "Optimizer")
        browser.click("Submit…")
        browser.click("Submit", "dialog")
        browser.await_text("jobs/1", "Running")
        place.await_step("jobs/1", 60)
        browser.await_text("Arena planned", "Process used")
        await_that(lambda: sizes_of_ranks(browser) == 8, "the memory of each rank is shown")
        os.kill(await_that(place.trainers, "there are trainers")[0], signal.SIGKILL)
        browser.await_text("Latest failure")
        browser.await_text("killed by", "Recovering")
        check(browser.find(".road .l-bad"), "the failure is on the time line")
        place.await_end("jobs/1")
        browser.await_text("Succeeded", "6,000", "2 attempts")
        browser.await_text("training", "Learning rate", "Gradient norm")
        check(browser.find(".road .f-stone"), "checkpoints are milestones")
        browser.open("#/jobs/1/logs")
        browser.await_text("Rank 1", " lines")
        browser.fill("input[type=search]", "step")
        browser.await_text("match")
        browser.open("#/jobs/1/spec")
        browser.await_text("layers: 1", "seed: 0")
        browser.open("#/jobs/1/checkpoints")
        browser.await_text("checkpoints/")
        browser.click("Pin…")
        browser.click("Pin", "dialog")
        browser.await_text("pinned")
        browser.open("#/jobs/1")
        browser.click("Fork…")
        browser.fill("dialog textarea", "train.steps=7000")
        browser.click("Fork", "dialog")
        browser.await_text("jobs/2", "Forked from")
        browser.open("#/compare?jobs=1,2")
        browser.await_text("What differs in their specs", "train.steps", "7000")
        if shots:
            browser.open("#/jobs/1")
            browser.await_text("training")
            browser.screenshot(shots / "job.png", 1500)


def actions(place, _):
    """Change, suspend, resume, cancel, drain: each asks first."""
    url = place.serve()
    place.login = ["--coordinator", place.address]
    place.make_data()
    place.await_ready("host-a")
    place.cli("queue", "create", "research")
    job = place.submit(10_000_000)
    with Browser(url) as browser:
        browser.open("#/jobs/1")
        browser.await_text("Running")
        browser.click("Change…")
        browser.fill("dialog input[name=priority]", "7")
        browser.fill("dialog input[name=queue]", "research")
        browser.fill("dialog textarea", "team=vision")
        browser.click("Change", "dialog")
        browser.await_text("team=vision", "research")
        check(place.job(job)["spec"]["scheduling"]["priority"] == 7, "the priority is changed")
        browser.click("Suspend…")
        browser.click("Suspend", "dialog")
        browser.await_text("Suspended")
        browser.open("#/jobs?labels=team%3Dvision&queue=research")
        browser.await_text("procedure", "Suspended")
        browser.open("#/jobs?labels=team%3Dspeech")
        browser.await_text("No job is like that")
        browser.open("#/cluster")
        browser.await_text("host-a", "0 free")
        browser.click("Drain…")
        browser.fill("dialog input[name=reason]", "new disks")
        browser.click("Drain", "dialog")
        browser.await_text("Drained: new disks")
        browser.open("#/jobs/1")
        browser.click("Resume…")
        browser.click("Resume", "dialog")
        browser.await_text("Waiting for slots")
        browser.open("#/queues")
        browser.await_text("research", "default", "Borrowed")
        browser.open("#/cluster")
        browser.click("Resume…")
        browser.click("Resume", "dialog")
        browser.open("#/jobs/1")
        browser.await_text("Running")
        browser.click("Cancel…")
        browser.click("Cancel the job", "dialog")
        browser.await_text("Cancelled")


def step_shown(browser):
    # In one go: the page draws its figures anew all the time.
    text = browser.driver.execute_script(
        "return document.querySelector('.kpi dd')?.innerText ?? '0'")
    return int(text.split("\n")[0].replace(",", ""))


def restart(place, _):
    """The coordinator dies and comes back; the page says so, and goes on by itself."""
    url = place.serve()
    place.login = ["--coordinator", place.address]
    place.make_data()
    place.await_ready("host-a")
    place.submit(10_000_000)
    with Browser(url) as browser:
        browser.open("#/jobs/1")
        browser.await_text("Running", "Live")
        place.stop(place.main, signal.SIGKILL)
        browser.await_text("tries again by itself", "Not connected")
        place.main = place.coordinator("main", "data", "--listen", place.address)
        browser.await_text("Live")
        check("tries again" not in browser.text(), "the banner is gone")
        step = int(place.job("jobs/1")["progress"]["step"])
        await_that(lambda: step_shown(browser) > step, "steps go on in the page")


def standbys(place, _):
    """The active coordinator dies, and a standby takes over: the page follows, to and fro."""
    etcd = place.etcd()
    data = place.folder / "store"
    place.run("milepost-coordinator", "init-store", data)
    active = place.standbys(data, etcd)
    both = place.login
    url = place.page(*place.login)
    place.agent = place.worker("host-a", place.login[1])
    place.make_data()
    place.await_ready("host-a")
    place.submit(10_000_000)
    with Browser(url) as browser:
        browser.open("#/jobs/1")
        browser.await_text("Running", "Live")
        for name in ("a", "b"):
            place.stop(active[name], signal.SIGKILL)
            step = int(place.job("jobs/1")["progress"]["step"])  # as the other one has it
            await_that(lambda least=step: step_shown(browser) > least, "steps go on in the page")
            browser.await_text("Live")
            active[name] = place.standbys(data, etcd, (name,))[name]
            place.login = both
        check(place.job("jobs/1")["attempts"] == 1, "the attempt has gone on")


def hostile_texts(place, _):
    """Whatever a user or a rank can write is shown, and not carried out."""
    url = place.serve()
    place.login = ["--coordinator", place.address]
    place.await_ready("host-a")
    (place.folder / "job.yaml").write_text(
        SPEC.format(name="hostile", train=json.dumps(f"{place.folder}/{EVIL}.npy"), steps=100))
    # The command would look at the file first.
    with Browser(url) as browser:
        browser.open("#/plan")
        area = browser.find("textarea")
        browser.driver.execute_script("arguments[0].value = arguments[1]", area,
                                      (place.folder / "job.yaml").read_text())
        browser.click("See what it needs")
        browser.await_text("Would be accepted")
        browser.click("Submit…")
        browser.click("Submit", "dialog")
        browser.await_text("Failed", EVIL)
        browser.open("#/jobs")
        browser.await_text("Failed", EVIL)
        browser.open("#/jobs/1/logs")
        browser.await_text(EVIL)
        browser.fill("input[type=search]", "<img")
        browser.await_text("match", EVIL)
        browser.open("#/jobs/1/spec")
        browser.await_text(EVIL)
        place.cli("queue", "create", "evil", "--description", EVIL)
        browser.open("#/queues")
        browser.await_text(EVIL)
        place.cli("worker", "drain", "host-a", "--reason", EVIL)
        browser.open("#/cluster")
        browser.await_text(EVIL)
        browser.open(f"#/jobs?name={EVIL}&labels={EVIL}")
        browser.await_text("Jobs")
        browser.open(f"#/jobs/{EVIL.replace('<', '%3C').replace('>', '%3E').replace(' ', '%20')}")
        browser.await_text("Overview")
        browser.open("#/plan")
        area = browser.find("textarea")
        browser.driver.execute_script("arguments[0].value = arguments[1]", area, f"{EVIL}: 1")
        browser.click("See what it needs")
        browser.await_text("The spec is wrong")
        check(not browser.driver.find_elements(By.CSS_SELECTOR, "img, main script"),
              "no element came of a text")


def login(place, _):
    """Tokens, a forbidden action, a session that is lost, a token that is revoked."""
    place.run("milepost-coordinator", "init-pki", "pki")
    place.run("milepost-coordinator", "init-pki", "pki", "--worker", "host-a")
    token = (place.folder / "pki/client/admin-token").read_text().strip()
    # The server of the page has the token too, and shows it to nobody.
    place.environment.update(MILEPOST_CA=str(place.folder / "pki/client/ca.crt"),
                             MILEPOST_TOKEN=token)
    url = place.serve(coordinator=("--tls", "pki/coordinator"),
                      worker=("--tls", "pki/workers/host-a"))
    place.environment["MILEPOST_COORDINATOR"] = place.address
    place.make_data()
    place.await_ready("host-a")
    place.submit(10_000_000)
    viewer = place.cli("auth", "token", "create", "--user", "eve", "--role", "viewer",
                       "--project", "default").strip()
    with Browser(url) as browser:
        browser.open("")
        browser.await_text("Log in", "Token")
        check("jobs/1" not in browser.text(), "nothing shows without a login")
        browser.fill("input[name=token]", "mp_forged" + Keys.ENTER)
        browser.await_text("does not know this token")
        browser.fill("input[name=token]", viewer + Keys.ENTER)
        browser.await_text("jobs/1", "eve", "Log out")
        check(viewer not in browser.driver.execute_script(
            "return document.cookie + JSON.stringify(localStorage) + JSON.stringify("
            "sessionStorage)"), "no script can read the token")
        browser.open("#/jobs/1")
        browser.await_text("Running")
        browser.click("Cancel…")
        browser.click("Cancel the job", "dialog")
        browser.await_text("submitter")  # what the coordinator says is missing
        check(place.job("jobs/1")["state"] == "RUNNING", "it goes on")
        browser.click("Back", "dialog")
        browser.driver.delete_all_cookies()
        browser.await_text("not logged in any more")
        browser.fill("input[name=token]", viewer + Keys.ENTER)
        browser.await_text("jobs/1", "Log out")
        tokens = json.loads(place.cli("auth", "token", "list", "-o", "json"))
        place.cli("auth", "token", "revoke",
                  next(one["name"] for one in tokens if one["user"] == "eve"))
        browser.await_text("not logged in any more")
        check("jobs/1" not in browser.text(), "nothing shows after that")


def phone_and_dark(place, shots):
    """A phone's width: nothing is wider than the page. And what a screen reader needs."""
    url = place.serve()
    place.login = ["--coordinator", place.address]
    place.make_data()
    place.await_ready("host-a")
    place.submit(10_000_000)
    for width, dark in ((390, False), (1360, True)):
        with Browser(url, width, 844, dark) as browser:
            for room in ("#/jobs", "#/jobs/1", "#/jobs/1/logs", "#/cluster", "#/queues", "#/plan",
                         "#/compare?jobs=1"):
                browser.open(room)
                browser.await_text({"#/plan": "See what it needs", "#/queues": "default",
                                    "#/cluster": "host-a"}.get(room, "procedure"))
                over = browser.driver.execute_script(
                    "return document.documentElement.scrollWidth - innerWidth")
                check(over <= 0, f"{room} is {over} pixels too wide at {width}")
                nameless = browser.driver.execute_script("""
                    return [...document.querySelectorAll('button, a, input, select, textarea')]
                      .filter((one) => !(one.textContent.trim() || one.ariaLabel ||
                                         one.labels?.length || one.title))
                      .map((one) => one.outerHTML)""")
                check(not nameless, f"{room} has controls without a name: {nameless}")
                check(browser.find("main h1, .head h1"), f"{room} has a heading")
            if shots:
                browser.open("#/jobs/1")
                browser.await_text("Learning rate")
                browser.screenshot(shots / ("phone.png" if width < 600 else "dark.png"))


def many_jobs(place, _):
    """Ten thousand jobs: rows out of sight are no elements, and the oldest can be reached."""
    url = place.serve()
    place.make_data()
    spec = {"name": "many", "data": {"train": str(place.folder / "train.npy"),
                                     "sequenceLength": "32"},
            "model": {"gpt2": {"layers": "1", "heads": "2", "width": "32", "vocabulary": "256",
                               "context": "32"}},
            "train": {"steps": "10", "batch": {"global": "4", "micro": "2"}},
            "resources": {"ranks": 64, "device": "DEVICE_KIND_CPU"}}
    spec["train"]["batch"] = {"global": "64", "micro": "1"}
    for _ in range(10):
        elements = [{"overrides": [{"path": "train.seed", "value": str(i)}]} for i in range(1000)]
        request = urllib.request.Request(
            f"{url}api/v1/JobService/SubmitJobArray",
            json.dumps({"spec": spec, "elements": elements}).encode(),
            {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            check(len(json.load(answer)["jobs"]) == 1000, "an array of a thousand")
    with Browser(url) as browser:
        browser.open("#/jobs")
        browser.await_text("jobs/10000", "waiting")
        def all_read():
            browser.driver.execute_script("scrollTo(0, document.body.scrollHeight)")
            shown = browser.driver.find_element(By.CSS_SELECTOR, ".sub").text
            return shown if shown.startswith("10,000 jobs") else None
        await_that(all_read, "all jobs are read")
        browser.driver.execute_script("scrollTo(0, document.body.scrollHeight)")
        browser.await_text("jobs/1\n")
        rows = browser.driver.execute_script("return document.querySelectorAll('tr').length")
        check(rows < 100, f"{rows} rows are elements")
        # Every frame of a ride through all of them.
        browser.driver.set_script_timeout(PATIENCE)
        frames = browser.driver.execute_async_script("""
            const done = arguments[0];
            const took = [];
            let last = performance.now();
            let at = document.body.scrollHeight;
            const step = (now) => {
              took.push(now - last);
              last = now;
              at -= 10000;
              scrollTo(0, at);
              if (at > 0) requestAnimationFrame(step); else done(took);
            };
            requestAnimationFrame(step);""")
        frames.sort()
        print(f"   {len(frames)} frames, median {frames[len(frames) // 2]:.1f} ms, "
              f"99% within {frames[int(len(frames) * 0.99)]:.1f} ms")


CASES = [job_from_start_to_end, actions, restart, standbys, hostile_texts, login, phone_and_dark,
         many_jobs]


def with_web(options, folder, case):
    with Web(options.bin, folder) as place:
        case(place, options.screenshots)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", required=True)
    add_only(parser, CASES)
    parser.add_argument("--screenshots", type=pathlib.Path)
    options = parser.parse_args()
    if webdriver is None or not os.path.exists(DRIVER):
        print("there is no Chromium: scripts/bootstrap --web")
        return 77
    if options.screenshots:
        options.screenshots.mkdir(parents=True, exist_ok=True)
    return run_cases(CASES, options.only,
                     lambda case, folder: with_web(options, folder, case))


if __name__ == "__main__":
    sys.exit(main())
