def write(plan, results, out):
    return {}, ""
