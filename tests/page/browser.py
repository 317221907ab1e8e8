"""A headless Chromium for tests, and the router's chat page seen through it."""
import os
import pathlib
import shutil
import tempfile

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from conftest import wait_for
from patience import patience

CHROMIUM = os.environ.get("BATON_CHROMIUM", "/usr/bin/chromium")
CHROMEDRIVER = os.environ.get("BATON_CHROMEDRIVER", "/usr/bin/chromedriver")
PICTURES = os.environ.get("BATON_SCREENSHOTS")  # a folder: keep pictures of the page there


def start():
    """(driver, its profile folder)"""
    for path in (CHROMIUM, CHROMEDRIVER):
        assert os.access(path, os.X_OK), f"{path} is missing: apt-get install chromium chromium-driver (or make setup-test)"
    profile = tempfile.mkdtemp(prefix="baton-chromium-")
    o = Options()
    o.binary_location = CHROMIUM
    for arg in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
                "--disable-sync", "--no-first-run", "--disable-dev-shm-usage", "--no-proxy-server", "--window-size=1100,800",
                f"--user-data-dir={profile}"):
        o.add_argument(arg)
    o.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    try:
        driver = webdriver.Chrome(options=o, service=Service(CHROMEDRIVER))
    except BaseException:
        shutil.rmtree(profile, ignore_errors=True)
        raise
    driver.set_page_load_timeout(patience(30))
    driver.set_script_timeout(patience(30))
    return driver, profile


class Page:
    def __init__(self, driver, url):
        self.d, self.url = driver, url

    def open(self, **settings):
        """Loads the page and waits for its list of models; settings: max=…, temperature=…, key=…"""
        self.d.get_log("browser")  # what another test left
        self.d.get(self.url + "/")
        self.set(**settings)
        return self

    def set(self, **settings):
        for name, value in settings.items():
            self.d.execute_script("const e = document.getElementById(arguments[0]); e.value = arguments[1];"
                                  "e.dispatchEvent(new Event('change'))", name, str(value))

    def size(self, width, height=800):
        self.d.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                               {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600})

    def scheme(self, name):
        self.d.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": name}]})

    def id(self, name):
        return self.d.find_element(By.ID, name)

    def models(self):
        return [o.get_attribute("value") for o in Select(self.id("model")).options]

    def wait_models(self, *names):
        wait_for(lambda: self.models() == list(names), 30, message=f"the page lists {names}")

    def fleet(self):
        return self.id("fleet").text

    def ask(self, text):
        self.id("prompt").send_keys(text, Keys.ENTER)

    def articles(self, role):
        return self.d.find_elements(By.CSS_SELECTOR, f"article.{role}")

    def answer(self):
        """Text of the last answer."""
        return self.d.execute_script("const t = document.querySelectorAll('article.assistant .text');"
                                     "return t.length ? t[t.length - 1].textContent : ''")

    def busy(self):
        return self.d.execute_script("return !!document.querySelector('article.busy')")

    def wait_answered(self, seconds=120):
        wait_for(lambda: not self.busy(), seconds, message="the answer ends")

    def facts(self):
        """{name: value} of the last answer's facts."""
        rows = self.d.execute_script("const u = document.querySelectorAll('article.assistant .facts');"
                                     "return u.length ? [...u[u.length - 1].children].map(li => [li.firstChild.data.trim(), li.lastChild.textContent]) : []")
        return dict(rows)

    def error(self):
        found = self.d.find_elements(By.CSS_SELECTOR, "article .error span")
        return found[-1].text if found else ""

    def console(self):
        """Errors and warnings in the browser's console since the last call."""
        return [e for e in self.d.get_log("browser") if e["level"] in ("SEVERE", "WARNING")]

    def picture(self, name):
        if PICTURES:
            pathlib.Path(PICTURES).mkdir(parents=True, exist_ok=True)
            self.d.save_screenshot(str(pathlib.Path(PICTURES) / f"{name}.png"))
